"""Ends of an answer, by which its text is judged."""

from __future__ import annotations

import pytest

from undersong_server.generators.interface import Completion, Finish


@pytest.mark.parametrize(
    ("finish", "end"),
    [("", "good"), ("length", "cut"), ("filter", "filtered"), ("refusal", "filtered"), ("unknown", "unknown")],
)
def test_every_finish_reason_maps_to_a_kind_of_end(finish: Finish, end: str) -> None:
    assert Completion("A note.", finish=finish).end == end
