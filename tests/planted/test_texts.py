"""The list of mistakes stays whole: each text stands once in its file, and each test that should notice exists."""

import re
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.planted import __main__ as planting
from tests.planted.texts import LEAST, TextMistake, read_mistakes

ROOT = Path(__file__).resolve().parent.parent.parent
MISTAKES = read_mistakes()


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_text_of_each_planted_mistake_occurs_once_in_its_file(mistake: TextMistake) -> None:
    assert (ROOT / mistake.file).read_text("utf-8").count(mistake.text) == 1
    assert mistake.text != mistake.wrong


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_tests_that_should_notice_a_planted_mistake_exist(mistake: TextMistake) -> None:
    for test in mistake.tests:
        file, _, name = test.partition("::")
        path = ROOT / file
        assert path.exists(), test
        if name:
            assert re.search(rf"def {re.escape(name.partition('[')[0])}\(", path.read_text("utf-8")), test


def test_each_part_of_the_code_has_its_least_number_of_planted_mistakes() -> None:
    rooms = Counter(mistake.room for mistake in MISTAKES)
    assert rooms.keys() == LEAST.keys()
    assert all(rooms[room] >= least for room, least in LEAST.items()), rooms


def test_planted_mistake_whose_text_is_not_found_once_is_refused(tmp_path: Path) -> None:
    mistake = TextMistake("pages", "a stale one", "file.py", "old", "new", ())
    for content in ("other", "old old"):
        (tmp_path / "file.py").write_text(content, "utf-8")
        with pytest.raises(ValueError, match="not once"):
            mistake.plant(tmp_path)
        assert (tmp_path / "file.py").read_text("utf-8") == content


def test_test_that_did_not_run_does_not_count_as_noticing_a_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    test = "tests/test_a.py::test_b"
    runs = [
        CompletedProcess([], 1, f"FAILED {test} - AssertionError", ""),
        CompletedProcess([], 4, f"ERROR: not found: {test}", ""),
    ]
    monkeypatch.setattr(planting, "run_tests", lambda *_: runs.pop(0))
    assert planting.failing_anyway(tmp_path, [test]) == [test]
    with pytest.raises(ValueError, match="did not run"):
        planting.failing_anyway(tmp_path, [test])
