"""The sum that may be prepared beside another one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from undersong_server.database.journal import Journal
from undersong_server.federation.preparation import Preparation


@pytest.mark.parametrize(("statements", "is_prepared"), [(None, True), ({}, True), ({"alpha": "00"}, False)])
def test_next_sum_is_not_prepared_if_its_first_attempt_is_void(
    statements: dict[str, str] | None, is_prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = [SimpleNamespace(name=name) for name in ("first", "second")]
    manifest: Any = SimpleNamespace(plan=SimpleNamespace(sums=sums))
    journal = Journal(Path(":memory:"))
    if statements is not None:
        journal.put_json("sum/second/void/0", statements)
    monkeypatch.setattr(Preparation, "find", lambda _self, name, number: (name, number))
    prepared = Preparation(manifest, journal, is_batched=True).find_next("first")
    assert prepared == (("second", 0) if is_prepared else None)
