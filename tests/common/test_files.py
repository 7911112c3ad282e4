"""Files that are replaced whole."""

from __future__ import annotations

import os

import pytest

from undersong_common.files import replace_file, replace_where_possible


def test_a_file_is_replaced_wherever_that_is_possible(tmp_path):
    places = [tmp_path / "one" / "mark", tmp_path / "gone" / "mark", tmp_path / "two" / "mark"]
    for place in (places[0], places[2]):
        place.parent.mkdir()
        replace_file(place, b"before")
    assert replace_where_possible(places, b"now") == [places[0], places[2]]
    assert [place.read_bytes() for place in (places[0], places[2])] == [b"now", b"now"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mark", "mark", "one", "two"]


@pytest.mark.parametrize(("step", "before"), [("fsync", 2), ("replace", 1)])  # a folder is synced after its file
def test_a_place_that_cannot_be_synced_or_renamed_keeps_what_it_had(tmp_path, monkeypatch, step, before):
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        replace_file(place, b"before")
    taken = iter((*[None] * before, OSError(28, "No space left on device")))
    own = getattr(os, step)

    def second_place_fails(*arguments):
        if error := next(taken, None):
            raise error
        own(*arguments)

    monkeypatch.setattr(os, step, second_place_fails)
    assert replace_where_possible(places, b"now") == places[:1]
    assert [place.read_bytes() for place in places] == [b"now", b"before"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
