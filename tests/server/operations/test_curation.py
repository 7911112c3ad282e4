"""Notes, tags, archive and marks: the operator's own words about runs, which stand beside the run and nowhere else."""

import io
import json
import zipfile

import pytest

from tests.doubles.coded import raises
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_server.defaults import RunOptions
from undersong_server.operations import curation, overview, releases, runs
from undersong_server.runs.folder import RunStatus

TEXTS = ["a hotel by the sea", "pain in the left wrist", "a\u2028separator", "fever since monday"]


@pytest.fixture
def home(tmp_path):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    task = make_task(tmp_path / "task")
    for name in ("first", "second"):
        runs.plan(home.path, task, RunOptions(name=name))
    run = home.run("first")
    run.write_status(RunStatus("finished", 1))
    run.output.mkdir()
    rows = [{"text": text, "label": "ab"[row % 2], "generator": "gh"[row // 2]} for row, text in enumerate(TEXTS)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (run.output / "synthetic.jsonl").write_text("".join(lines), encoding="utf-8")
    return home


def test_run_is_found_by_note_and_tags_which_the_support_bundle_omits(home):
    curation.describe(home.path, "first", note="for the board\r\nkeep", tags=[" spring ", "Board", "board", ""])
    assert curation.show(home.path, "first").tags == ("Board", "spring")
    everything = overview.list_runs(home.path)
    for filters, names in (
        ({"tag": "spring"}, ["first"]),
        ({"find": "BOARD"}, ["first"]),
        ({"find": "second"}, ["second"]),
        ({"tag": "nothing"}, []),
    ):
        assert [run.run for run in overview.listed_runs(everything, **filters)] == names
    curation.describe(home.path, "first", tags=[])
    kept = curation.show(home.path, "first")
    assert (kept.note, kept.tags) == ("for the board\nkeep", ())
    with zipfile.ZipFile(io.BytesIO(overview.support_bundle(home.path))) as bundle:
        assert not any(b"for the board" in bundle.read(name) for name in bundle.namelist())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [{"note": "x" * 4001}, {"note": "\x1b[2J"}, {"tags": ["y" * 41]}, {"tags": map(str, range(21))}]
)
def test_too_long_or_unprintable_note_and_tags_are_refused(home, words):
    curation.describe(home.path, "first", note="before", tags=["kept"])
    with pytest.raises(ConfigurationError):
        curation.describe(home.path, "first", **words)
    assert curation.show(home.path, "first").note == "before"
    with raises(ConfigurationError, "no-run"):
        curation.describe(home.path, "nobody planned it", note="x")


def test_run_put_into_the_archive_leaves_the_lists_until_taken_back(home):
    names = lambda **filters: [run.run for run in overview.listed_runs(overview.list_runs(home.path), **filters)]  # noqa: E731
    runs.put_away(home.path, "first")
    assert (names(), names(archive=True)) == (["second"], ["first"])
    runs.take_back(home.path, "first")
    assert (sorted(names()), names(archive=True)) == (["first", "second"], [])
    home.run("second").write_status(RunStatus("running", 1))
    with raises(ConfigurationError, "under-way"):
        runs.put_away(home.path, "second")


def test_damaged_note_file_does_not_affect_the_state_of_its_run(home):
    (home.run("first").path / "annotations.json").write_text("{")
    listed = {run.run: run.status.state for run in overview.list_runs(home.path)}
    assert listed == {"first": "finished", "second": "planned"}
    with raises(ConfigurationError, "unreadable"):
        curation.show(home.path, "first")


def test_only_existing_rows_can_be_marked_and_marks_can_be_searched(home):
    curation.mark_texts(home.path, "first", [4, 1])
    marked = releases.search(home.path, "first", texts="marked")
    assert (marked.numbers, [row["text"] for row in marked.texts]) == ((1, 4), [TEXTS[0], TEXTS[3]])
    curation.mark_texts(home.path, "first", [4], marked=False)
    assert releases.search(home.path, "first", find="separator").numbers == (3,)
    assert releases.search(home.path, "first").marked == (1,)
    for rows in ([0], [5]):
        with raises(ConfigurationError, "no-text"):
            curation.mark_texts(home.path, "first", rows)
    with raises(ConfigurationError, "run-not-finished"):
        curation.mark_texts(home.path, "second", [1])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("filters", "labels", "generators"),
    [
        ({}, {"a": 2, "b": 2}, {"g": 2, "h": 2}),
        ({"label": "a"}, {"a": 2, "b": 2}, {"g": 1, "h": 1}),
        ({"generator": "g"}, {"a": 1, "b": 1}, {"g": 2, "h": 2}),
        ({"label": "a", "generator": "g"}, {"a": 1, "b": 1}, {"g": 1, "h": 1}),
    ],
)
def test_search_counts_by_label_ignore_the_label_filter_itself(home, filters, labels, generators):
    matches = releases.search(home.path, "first", **filters)
    assert (matches.labels, matches.generators) == (labels, generators)
