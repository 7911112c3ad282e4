"""The question if an attempt is void names that attempt, and its answers are kept under it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import PrivacyRefusal, RoundAborted, TransportError
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.database.journal import Journal
from undersong_server.federation.sums import Federation


def test_void_statements_are_requested_from_absent_parties_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], wire.VoidSum]] = []
    kept: dict[str, Any] = {}
    statement = wire.Reply(void_statement=wire.VoidStatement(statement=b"signed"))

    def ask_all(names: list[str], *, void_sum: wire.VoidSum) -> dict[str, wire.Reply]:
        asked.append((list(names), void_sum))
        return dict.fromkeys(names, statement)

    monkeypatch.setattr(secagg, "is_void", lambda _parameters, statements: len(statements) == 3)
    federation = SimpleNamespace(
        manifest=SimpleNamespace(hash=b"h" * 32),
        _names=["alpha", "beta", "gamma"],
        _preparation=SimpleNamespace(void_statements=lambda _name, _number: None),
        _exchange=SimpleNamespace(ask_all=ask_all),
        _journal=SimpleNamespace(put_json=kept.__setitem__),
    )
    absences = {"alpha": TransportError("silent"), "beta": PrivacyRefusal("refuses")}
    attempt = SimpleNamespace(name="votes/1", number=2, absences=absences, parameters=None)
    assert Federation._is_voided(cast(Federation, federation), cast(Any, attempt))
    assert [names for names, _ in asked] == [["beta", "gamma"], ["alpha"]]
    assert all((sum_.manifest_hash, sum_.sum, sum_.attempt) == (b"h" * 32, "votes/1", 2) for _, sum_ in asked)
    assert kept == {"sum/votes/1/void/2": dict.fromkeys(("alpha", "beta", "gamma"), b"signed".hex())}


@pytest.mark.parametrize(
    ("is_void", "spare_attempts", "tried"), [(True, 0, 3), (True, 1, 4), (False, 0, 1), (False, 2, 3)]
)
def test_three_void_attempts_are_free_and_others_use_a_spare_one(
    is_void: bool, spare_attempts: int, tried: int
) -> None:
    numbers: list[int] = []

    def run_attempt(attempt: int, _inputs: object) -> None:
        numbers.append(attempt)
        raise RoundAborted("too few parties are left")

    quorum = SimpleNamespace(spare_attempts=spare_attempts)
    federation = SimpleNamespace(
        manifest=SimpleNamespace(plan=SumsOfPlan(quorum)),
        _journal=Journal(Path(":memory:")),
        _preparation=SimpleNamespace(find=lambda _name, number: number),
        _progress=SimpleNamespace(say=lambda _words: None),
        _run_attempt=run_attempt,
        _is_voided=lambda _attempt: is_void,
        _make_final_error=lambda _attempt, aborted: aborted,
    )
    with raises(RoundAborted, ""):
        Federation.private_sum(cast(Federation, federation), "votes/1", [])
    assert numbers == list(range(tried))


class SumsOfPlan:
    """A plan of which every name is a sum."""

    def __init__(self, quorum: object) -> None:
        self.quorum = quorum

    def __getitem__(self, name: str) -> object:
        return SimpleNamespace(name=name, scale=1)
