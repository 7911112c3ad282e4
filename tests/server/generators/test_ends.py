"""Ends of an answer, by which its text is judged."""

from __future__ import annotations

import pytest

from undersong_server.generators.interface import Completion, Finish


@pytest.mark.parametrize(
    ("finish", "end"),
    [("", "good"), ("length", "cut"), ("filter", "filtered"), ("refusal", "filtered"), ("unknown", "unknown")],
)
def test_every_reason_of_an_end_has_a_kind(finish: Finish, end: str) -> None:
    assert Completion("A note.", finish=finish).end == end
