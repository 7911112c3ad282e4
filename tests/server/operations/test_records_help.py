"""One word for the records' help of a run, wherever a person reads it."""

import re
from dataclasses import replace

import pytest

from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from tests.server.report.test_report import both, panel_scores, printed, run, scored
from undersong_common.intervals import DIFFERENCE_WORDS
from undersong_server.defaults import RunOptions
from undersong_server.methods.parts.private_score import SIMILARITY, ZeroShot
from undersong_server.operations import comparison, runs
from undersong_server.operations.open_points import open_points
from undersong_server.release.verify import NOT_CHECKED
from undersong_server.report.conclusion import conclude
from undersong_server.report.evaluations import Evaluated, KeptMeasure, keep_evaluation, keep_help
from undersong_server.report.verdict import HELP, RecordsHelp, records_help
from undersong_server.runs.folder import RunStatus

PANEL = {"panel score": KeptMeasure(0.9, "high", percent=True, interval=(0.85, 0.95))}
ONE_WORD = re.compile("|".join(sorted(filter(None, DIFFERENCE_WORDS.values()))))
FORMER_WORDS = ("no measured gain", "no gain", "no better", "made it", "helped the", "nearer", "further from")


def finish_with_help(tmp_path, data):
    """A home with a finished run whose card says of the records' help what ``data`` does."""
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    folder = home.run("first")
    folder.write_status(RunStatus("finished", 1))
    folder.output.mkdir()
    (folder.output / "synthetic.jsonl").write_text('{"text": "a b c", "label": "a", "generator": "another"}\n')
    keep_evaluation(folder, Evaluated("test.jsonl, 0123abcd", {"panel score": "90.0 %"}, PANEL, 4))
    keep_help(folder, data)
    if data.score is not None:
        folder.tell("record", {"round": 0, "name": "score", "value": data.score.to_json()})
    return home.path


def by_similarity(baseline):
    return replace(scored(0.5, 0.54), measure=SIMILARITY, zero_shot=ZeroShot(200, baseline, 0.01))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"accuracy": panel_scores((0.6, 0.7), (0.4, 0.5))}, "better"),
        ({"accuracy": panel_scores((0.6, 0.7), (0.5, 0.65))}, "within chance"),
        ({"accuracy": panel_scores((0.5, 0.6), (0.7, 0.8))}, "worse"),
        ({"score": scored(0.7, 0.8), "gain": (0.05, 0.02)}, "better"),
        ({"score": scored(0.7, 0.8), "gain": (0.03, 0.02)}, "within chance"),
        ({"score": scored(0.7, 0.8), "gain": (-0.05, 0.02)}, "worse"),
        ({"score": scored(0.7, 0.8)}, "not measured"),
        ({"labels": (), "score": by_similarity(0.47)}, "better"),
        ({"labels": (), "score": by_similarity(0.51)}, "within chance"),
        ({"labels": (), "score": by_similarity(0.6)}, "worse"),
    ],
)
def test_records_help_has_the_same_words_on_every_page(tmp_path, changes, word):
    data = run(**({"labels": tuple("abcdef"), "accuracy": (), "measures": ()} | changes))
    home = finish_with_help(tmp_path, data)
    words = records_help(data).words
    judgement = comparison.judge(home, "first")
    (cell,) = next(figure.cells for figure in comparison.compare(home, ["first"]).figures if figure.name == HELP)
    points = [point.words for point in open_points(home, "first", judgement) if HELP in point.words.lower()]
    places = [conclude(data), words, judgement.words, cell.words, comparison.compare(home, ["first"]).judgements[0]]
    named = [ONE_WORD.findall(place.lower().replace("better than guessing", "")) for place in (*places, *points)]
    assert {found for place in named for found in place} == {word}
    assert all(named[1:])  # the conclusion of an unmeasured help leaves the word to the verdict behind it
    assert len(points) == (word != "better")
    for page in (*both(data), " ".join(printed(data, width=400).split())):
        assert words in page
        assert not [former for former in FORMER_WORDS if former in page.lower()]


def test_verify_says_that_it_does_not_check_the_records_help():
    assert "whether the records helped, on card and report, are their makers' word" in NOT_CHECKED


def test_records_help_says_that_a_worse_choice_is_not_published():
    worse_choice, worse_corpus = (RecordsHelp("x", -1, is_of_choice=is_of_choice) for is_of_choice in (True, False))
    assert worse_choice.word == "worse, so their choice is not published"
    assert worse_corpus.word == "worse"
