"""Every part of every screen of a run in each state is shown: none says that it cannot be."""

from __future__ import annotations

import json
import re
import time
from html import unescape

import pytest

from tests.doubles.entered_console import entered_console
from tests.doubles.parties import public_of
from tests.doubles.published import PARTIES
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.methods.parts import support
from undersong_server.methods.parts.private_score import RECORD, SIMILARITY, PrivateScore, ZeroShot
from undersong_server.operations import comparison, curation, enrolment, releases, runs
from undersong_server.pool import Sample
from undersong_server.release.files import Signer, corpus_files, sha256_of, write_files
from undersong_server.report.evaluations import MISMATCHES_FILE, Evaluated, KeptMeasure, keep_evaluation
from undersong_server.report.verdict import BETTER, HARDLY, UNMEASURED, similarity_help
from undersong_server.runs.folder import Awaited, AwaitedParty, RunFailure, RunStatus, replace_json

pytestmark = pytest.mark.heavy

RUN = "first 2"  # a name that an address has to quote
ONE, RESULT = "/runs/one/first%202", "/runs/one/first%202/result"
WAITING = Awaited((AwaitedParty("beta", True, 3.0),), 1.0, None, 3, "beta decides", "people")
STATUSES = {
    "planned": RunStatus(),
    "waiting": RunStatus("running", since=1.0, waiting=WAITING),
    "running": RunStatus("running", since=1.0, charged=True),
    "stopped": RunStatus("stopped", since=1.0),
    "failed": RunStatus("failed", since=1.0, error=RunFailure("no", "mend it", 2)),
    "rejected": RunStatus("failed", since=1.0, error=RunFailure("no", "talk", 3, ("beta",), ("alpha",))),
    "finished": RunStatus("finished", 1, at=time.time(), since=1.0),
    "marked": RunStatus("finished", 1, at=time.time(), since=1.0),
    "downloaded": RunStatus("finished", 1, at=time.time(), since=1.0),
}


def shown_home(tmp_path, published, state, labels="ab"):
    """A coordinator's folder with one run in this state; a finished one has signed papers that verify holds whole."""
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma"))
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name=RUN))
    run = home.run(RUN)
    run.write_status(STATUSES[state])
    if STATUSES[state].state == "finished":
        samples = [Sample(f"text {number}", labels and labels[number % 2], "g", 1, "new") for number in range(4)]
        files = {**corpus_files(samples), "README.md": "---\nlicense: mit\n---\n\n# 4 texts\n", "report.html": "a"}
        write_files(run.output, files)
        hashes = {name: sha256_of(run.output / name) for name in files}
        signed = Signer("clinics", home.authority(), {name: public_of(name) for name in PARTIES})
        (run.output / "manifest.json").write_text(json.dumps(signed.sign({**published, "files": hashes})))
    if state in ("marked", "downloaded"):
        curation.mark_texts(home.path, RUN, (1,))
    if state == "downloaded":
        curation.note_download(home.path, RUN)
    return home.path


def next_step_links(page):
    part = page.partition("What comes next")[2].partition("</section>")[0]
    return [link.partition('"')[0].removeprefix("/") for link in part.split('href="')[1:]]


@pytest.mark.parametrize("labels", ["ab", ""])
@pytest.mark.parametrize("state", STATUSES)
def test_every_screen_shows_all_its_parts_in_every_run_state(tmp_path, published, state, labels):
    home = shown_home(tmp_path, published[0], state, labels)
    paths = ["/", "/parties", "/parties/invite", "/parties/sign", "/parties/one/beta", "/parties/one/beta/letter"]
    paths += ["/runs", "/runs?state=archive", "/runs/new", ONE, f"/compare?run={RUN}", "/generators", "/audit"]
    if STATUSES[state].state == "finished":
        paths.append(RESULT)
    with entered_console(home) as console:
        for path in paths:
            answer = console.get(path)
            assert answer.status_code == 200, path
            assert "cannot be shown" not in answer.text, path
            own = path.partition("?")[0].removeprefix("/")
            assert not [link for link in next_step_links(answer.text) if link.split("/", 2)[-1] == own], path
    if STATUSES[state].state == "finished":
        assert releases.verdict(home, RUN).holds


def test_screen_test_notices_a_part_that_cannot_be_shown(tmp_path, published, monkeypatch):
    home = shown_home(tmp_path, published[0], "finished")
    monkeypatch.setattr(releases, "verdict", lambda *_: object())
    with entered_console(home) as console:
        assert "cannot be shown" in console.get(RESULT).text


def test_letter_to_an_enrolled_hospital_omits_how_to_join(tmp_path, published):
    home = shown_home(tmp_path, published[0], "planned")
    enrolment.invite(home, "delta")
    with entered_console(home) as console:
        letters = {name: console.get(f"/parties/one/{name}/letter").text for name in ("beta", "delta")}
    assert ["<code>join</code> with" in letter for letter in letters.values()] == [False, True]
    assert all("tell us which labels your file has" in letter for letter in letters.values())


def score(gain):
    return PrivateScore(0.5, 0.4, 0.6, 0.1, 0.1, SIMILARITY, ZeroShot(4, 0.5 - gain, 0.02))


def by_similarity(gain):
    return similarity_help(score(gain).value, score(gain).zero_shot).words


@pytest.mark.parametrize(
    ("gain", "low", "words"),
    [
        (0.2, None, by_similarity(0.2)),
        (0.01, None, by_similarity(0.01)),
        (-0.2, None, by_similarity(-0.2)),
        (None, None, UNMEASURED),
        (None, 0.1, HARDLY),
        (None, 0.9, BETTER),
    ],
)
def test_result_page_opens_with_exactly_one_judgement(tmp_path, published, gain, low, words):
    home = shown_home(tmp_path, published[0], "finished")
    folder = CoordinatorHome(home).run(RUN)
    if gain is not None:
        folder.tell("record", {"round": 1, "name": RECORD, "value": score(gain).to_json()})
    if low is not None:
        panel = {"panel score": KeptMeasure(low, "high", percent=True, interval=(low, low))}
        keep_evaluation(folder, Evaluated("public, 0", {"panel score": "x"}, panel))
    with entered_console(home) as console:
        found = console.get(RESULT).text.partition('id="evaluation"')[2].partition("</table>")[0]
    judgement = comparison.judge(home, RUN)
    assert (*judgement.alarms, judgement.words)[0] == words
    sentences = (*map(by_similarity, (0.2, 0.01, -0.2)), UNMEASURED, HARDLY, BETTER)
    said = [sentence for sentence in sentences if sentence in unescape(found)]
    assert said == [words]


def votes_of(share, error=0.02):
    """Recorded votes on the two generators of the task: of the second one by ``share`` of the first one's."""
    return {"records": 200.0, "votes": [100.0, 100.0 * share], "expected": [100.0, 100.0], "error": [error, error]}


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ({}, None),
        ({"support": votes_of(0.5)}, comparison.UNJUDGED),
        ({"support": votes_of(1.0)}, None),
        ({"support": votes_of(0.5), support.RECORD: [["x", "a", "other", 0, "new", "stray"]]}, None),
        ({"weights": [1.0, 0.0]}, comparison.STOPPED),
        ({"weights": [1.0, 0.0], "support": votes_of(0.5)}, comparison.UNJUDGED),
    ],
)
def test_result_page_links_to_the_texts_of_an_unjudged_generator(tmp_path, published, records, reason):
    home = shown_home(tmp_path, published[0], "finished")
    folder = CoordinatorHome(home).run(RUN)
    names = [table["name"] for table in folder.planned().task["generators"]]
    corpus = folder.output / "synthetic.jsonl"
    rows = [{**json.loads(line), "generator": names[1]} for line in corpus.read_text().splitlines()]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, value in records.items():
        folder.tell("record", {"round": 0, "name": name, "value": value})
    expected = () if reason is None else (comparison.TextsToRead(names[1], 4, reason),)
    assert comparison.texts_to_read(home, RUN, releases.search(home, RUN).generators) == expected
    with entered_console(home) as console:
        top = unescape(console.get(RESULT).text).partition('id="evaluation"')[2].partition("<details")[0]
        read = console.get(f"{RESULT}?generator={names[1]}").text
    assert (f"4 texts of {names[1]}" in top) == (reason is not None)
    assert (reason or "") in top
    assert (f'{RESULT}?generator={names[1]}#corpus">Read them' in top) == (reason is not None)
    assert '<details id="corpus-texts" open>' in read


def test_result_lists_the_rows_that_read_like_another_label_to_mark_them(tmp_path, published):
    home = shown_home(tmp_path, published[0], "finished")
    mismatches = {"rows": 60, "label_by_row": {"3": "b<i>", "2": "a"}}
    replace_json(CoordinatorHome(home).run(RUN).path / MISMATCHES_FILE, mismatches, durable=False)
    with entered_console(home) as console:
        page = console.get(RESULT).text
        shown = console.get(f"{RESULT}?marked=mismatched").text.partition('id="corpus"')[2]
    assert "2 of 60 rows (3.3 %) read like another label than their own" in page.partition('id="corpus"')[0]
    assert f'{RESULT}?marked=mismatched#corpus"' in page
    assert "read like another label (2)</option>" in page
    assert re.findall(r'<li id="text-(\d)">', shown) == ["3", "2"]
    assert "3 · a · g · reads like b&lt;i&gt;" in shown
    assert "Mark these 2 texts" in shown
    assert "Unmark these" not in shown


def test_result_page_repeats_the_cards_words_and_folds_other_figures(tmp_path, published):
    home = shown_home(tmp_path, published[0], "finished")
    measures = {
        "panel score": KeptMeasure(0.9, "high", percent=True, interval=(0.85, 0.95)),
        "precision": KeptMeasure(0.108, "high", percent=False),
        "MAUVE": KeptMeasure(0.054, "high", percent=False),
        "doubtful labels": KeptMeasure(0.05, "low", percent=True),
        "Vendi score": KeptMeasure(12.0, "beside", percent=False, mark="29.5, the test texts'"),
    }
    shown = {"precision": "0.108", "MAUVE": "0.054"}
    evaluation = Evaluated("public, 0", dict.fromkeys(measures, "x") | shown, measures, 4)
    keep_evaluation(CoordinatorHome(home).run(RUN), evaluation)
    with entered_console(home) as console:
        page = unescape(console.get(RESULT).text)
    top, _, folded = page.partition('id="evaluation"')[2].partition('<details id="all-figures"')
    assert "The corpus looks little like the test texts of public, 0: about 11 of 100 corpus texts" in top
    assert "5.0 % of the labels are doubtful" in top
    assert "good near 29.5, the test texts'" in folded
    assert re.search(r"4 texts of 4; 0 marked\. The plan allows at most \d", folded)
    assert "by its own key; its " in folded
    assert "that you stated" not in page
    assert '<details id="corpus-texts">' in page
