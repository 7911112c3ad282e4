"""The words of a plan: always the same for a manifest's hash, and each try at other ones costs 16 MiB of scrypt."""

from __future__ import annotations

import hashlib

import pytest

from undersong_protocol.agreement import manifest


def test_words_follow_from_the_hash_at_the_stated_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "hashlib", hashlib)  # the suite makes it cheap (tests/conftest.py)
    assert manifest.plan_words(bytes(32)) == "weasel pencil avocado blend bracket wicker east ripple badge"
    assert 128 * manifest._COST["n"] * manifest._COST["r"] == 16 * 2**20


def test_typed_words_are_compared_without_case_and_marks() -> None:
    assert manifest.same_words("Acid, ACORN-action", "acid acorn action")
    assert not manifest.same_words("acid acorn", "acid acorn action")
