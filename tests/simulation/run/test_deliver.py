"""Whole simulations of a small task: outputs, resume, refusals, secrecy."""

import csv
import html
import json
import logging
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet
import pytest

from tests.doubles import processes
from tests.doubles.coded import raises
from tests.doubles.delivery import delivered
from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import JUDGED, LABELS, Row, make_replay_task, make_task, write_rows
from tests.doubles.tiny_bert import write_bert
from undersong.run import simulation
from undersong.run.records import private_tables
from undersong.run.workspace import SimulatedParties, Workspace, read_keys
from undersong_client.records.private import fingerprint
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal, UndersongError
from undersong_common.models import embedders
from undersong_common.models.embedding import Embedder, TextLengths
from undersong_common.privacy.ledger import Ledger
from undersong_common.text.table import read_table
from undersong_protocol.agreement.manifest import Manifest
from undersong_server.evaluation import panel
from undersong_server.generators.interface import PromptFormat
from undersong_server.generators.kinds.ngram import NgramGenerator, NgramSettings
from undersong_server.operations import tasks as task_files
from undersong_server.progress import Silent
from undersong_server.release.files import OUTPUT_NAMES, charges
from undersong_server.release.verify import verify
from undersong_server.report import usefulness
from undersong_server.report.data import ZERO_SHOT, are_equal, number
from undersong_server.runs import task as tasks

pytestmark = pytest.mark.heavy

MARKER = "zyzzyva-4711"


class Heard(Silent):
    """Keeps what a simulation says."""

    def __init__(self):
        self.lines = []

    def say(self, message):
        self.lines.append(message)


OF_ONE_METHOD = ("set-aside.jsonl", "sequences.jsonl", "adapters.zip")
WRITTEN = tuple(name for name in OUTPUT_NAMES if name not in OF_ONE_METHOD)


def run(task_path, out, *assignments, **changes):
    return delivered(tasks.load(task_path, assignments), out, **{"seed": 3, "insecure_noise_seed": None} | changes)


@pytest.fixture(scope="module", autouse=True)
def hashed():
    """Embeddings without weights: what is tested is the same with any embedder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())
        yield


@pytest.mark.slow
def test_simulation_warns_if_few_records_make_answers_mostly_noise(tmp_path):
    heard = Heard()
    run(make_task(tmp_path / "task", records=4, samples=30), tmp_path / "out", progress=heard)
    assert any("of 12 records: most single coordinates will be noise" in line for line in heard.lines)
    assert not any("full_names" in line for line in heard.lines)


@pytest.mark.slow
def test_simulation_warns_of_full_names_that_it_ignores(tmp_path):
    heard = Heard()
    names = {"federation.full_names": {"delta": "Delta"}}
    run(make_task(tmp_path / "task", records=4, samples=30, **names), tmp_path / "out", progress=heard)
    assert any(line.startswith("federation.full_names is ignored for 'delta'") for line in heard.lines)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    task_path = make_task(folder / "task", marker=MARKER)
    log = folder / "debug.log"
    handler = logging.FileHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    root.debug("what is logged is kept")  # a run may have nothing to say
    try:
        delivered = run(task_path, folder / "out")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    return folder, delivered


def test_report_counts_long_corpus_texts_and_those_read_only_in_part(tmp_path):
    rows: list[Row] = [
        {"text": " ".join(f"{kind}{place}" for place in range(count)), "label": "a"}
        for kind, count in (("short", 1), ("full", 50), ("long", 51), ("longest", 400), ("cut", 401))
    ]
    task_path = make_replay_task(
        tmp_path,
        rows,
        generators={"one": rows},
        task={"labels": ["a"]},
        federation={"parties": 1},
        method={"name": "mixture", "samples": 40},
    )
    delivered = run(task_path, tmp_path / "out")
    assert {sample.text for sample in delivered.report.samples} == {row["text"] for row in rows}
    assert TextLengths(texts=5, long=3, cut=1).words in delivered.report.remarks
    assert delivered.report.remarks[-1] in html.unescape((tmp_path / "out" / "report.html").read_text())


def test_simulation_writes_every_output_and_they_agree(finished):
    folder, delivered = finished
    out = folder / "out"
    assert {path.name for path in out.iterdir()} == {*WRITTEN, ".undersong"}
    rows = [json.loads(line) for line in (out / "synthetic.jsonl").read_text().splitlines()]
    assert len(rows) == len(delivered.report.samples) >= 20
    assert {row["label"] for row in rows} == set(LABELS)
    assert pyarrow.parquet.read_table(out / "synthetic.parquet").to_pylist() == rows
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["private"] is True
    assert set(manifest["receipts"]) == {"site-0", "site-1", "site-2"}
    ledger = charges(out)
    for party in ("site-0", "site-1", "site-2"):
        assert [entry["query"] for entry in ledger if entry["party"] == party and entry["kind"] == "charge"] == [
            "votes/1",
            "votes/2",
        ]


def test_lineage_links_every_row_to_texts_of_earlier_rounds(finished):
    folder, delivered = finished
    lines = [json.loads(line) for line in (folder / "out" / "lineage.jsonl").read_text().splitlines()]
    assert sorted(line["row"] for line in lines if "row" in line) == list(range(len(delivered.report.samples)))
    assert [line["id"] for line in lines] == list(range(len(lines)))
    later = [line for line in lines if line["operator"] == "contrast"]
    assert later
    for line in later:
        assert line["good"]
        assert all(lines[shown]["round"] < line["round"] for shown in line["good"] + line["bad"])
        assert {lines[shown]["label"] for shown in line["good"]} == {line["label"]}


def test_simulation_writes_its_figures_by_round_into_one_file(finished):
    folder, delivered = finished
    rows = list(csv.DictReader((folder / "out" / "rounds.csv").read_text().splitlines()))
    weights = [[float(row["value"]) for row in rows if row["figure"] == "weight" and row["round"] == n] for n in "123"]
    assert weights == [list(row) for row in delivered.report.weights]
    errors = [float(row["standard_error"]) for row in rows if row["figure"] == "weight" and row["round"] == "3"]
    assert errors == list(delivered.report.weight_errors) == delivered.to_json()["weight_errors"]
    equal = are_equal(delivered.report.weights[-1], delivered.report.weight_errors)
    assert equal == any("not distinguishable from equal" in remark for remark in delivered.report.remarks)
    assert delivered.to_json()["weights_remark"] == ("not distinguishable from equal" if equal else None)
    assert all(row["standard_error"] for row in rows if row["figure"] == "weight" and row["round"] != "1")
    assert sum(float(row["value"]) for row in rows if row["figure"] == "texts") == len(delivered.report.samples)


@pytest.mark.slow
def test_distances_by_round_cost_one_private_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(embedders, "dimension", lambda _: HashedEmbedder().encode(["one"]).shape[1])
    path = make_task(tmp_path / "task")
    asked = ("privacy.distance=true", "privacy.expected_records=60")
    delivered = run(path, tmp_path / "out", *asked)
    sums = json.loads((tmp_path / "out" / "manifest.json").read_text())["sums"]
    assert list(sums) == ["votes/1", "votes/2", "distance"]
    assert delivered.report.privacy.epsilon_after[-1] == pytest.approx(4.0, rel=1e-5)
    rows = list(csv.DictReader((tmp_path / "out" / "rounds.csv").read_text().splitlines()))
    distances = [row for row in rows if row["figure"].startswith("squared distance of means")]
    assert [(row["round"], row["figure"].partition(", ")[2]) for row in distances] == [
        *[("1", ""), ("2", ""), ("2", "change"), ("3", ""), ("3", "change")]
    ]
    assert all(float(row["standard_error"]) > 0.0 for row in distances)
    with pytest.raises(ConfigurationError, match=r"privacy\.distance"):
        run(path, tmp_path / "other", "privacy.distance=true")
    assert not (tmp_path / "other").exists()


def test_a_run_spends_exactly_its_plan(finished):
    folder, delivered = finished
    value = json.loads((folder / "out" / "manifest.json").read_text())
    manifest = Manifest.from_bytes(
        json.dumps(value["manifest"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    )
    assert manifest.hash.hex() == value["manifest_hash"]
    assert [planned.name for planned in manifest.plan.sums] == list(value["sums"])
    assert manifest.plan.epsilon() == pytest.approx(4.0, rel=1e-5)
    assert delivered.report.privacy.epsilon_after[-1] == pytest.approx(4.0, rel=1e-5)


def test_simulation_leaves_nothing_private_in_any_file_or_log(finished):
    folder, _ = finished
    needles = [MARKER.encode()]
    for path in (folder / "task" / "private").iterdir():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            needles += [row["text"].encode(), f'"{row["user"]}"'.encode()]
    from undersong_common.models.embedding import CachedEmbedder, MemoryCache, _to_grid

    embedder = CachedEmbedder(Embedder.load(), MemoryCache())
    texts = [json.loads(line)["text"] for line in (folder / "task/private/site-0.jsonl").read_text().splitlines()]
    for row in embedder.encode(texts):
        needles += [row.tobytes(), row.astype("<f2").tobytes(), _to_grid(row[None]).tobytes()]
    searched = 0
    for path in [folder / "debug.log", folder / "cache.sqlite", *(folder / "out").rglob("*")]:
        if path.is_file():
            searched += 1
            content = path.read_bytes()
            assert not [needle for needle in needles if needle in content], path
    assert searched >= 12
    assert (folder / "debug.log").stat().st_size > 0


def test_the_state_of_the_parties_is_readable_by_its_owner_only(finished):
    folder, _ = finished
    state = folder / "out" / ".undersong"
    assert state.stat().st_mode & 0o077 == 0
    assert (state / "keys.json").stat().st_mode & 0o077 == 0
    assert (state / "parties.sqlite").stat().st_mode & 0o077 == 0


def test_the_same_command_again_changes_no_text_and_charges_nothing(finished):
    folder, delivered = finished
    before = (folder / "out" / "synthetic.jsonl").read_bytes()
    ledger = charges(folder / "out")
    again = run(folder / "task" / "task.toml", folder / "out")
    assert (folder / "out" / "synthetic.jsonl").read_bytes() == before
    assert charges(folder / "out") == ledger
    assert again.report.plan_hash == delivered.report.plan_hash


def test_folder_of_another_run_is_refused_unless_fresh_is_given(finished):
    folder, _ = finished
    task_path = folder / "task" / "task.toml"
    with raises(ConfigurationError, "other-run"):
        run(task_path, folder / "out", seed=4)
    with raises(ConfigurationError, "foreign-folder"):
        run(task_path, folder / "task")
    copy = folder / "again"
    first = run(task_path, copy, "method.rounds=1")
    second = run(task_path, copy, "method.rounds=1", fresh=True)
    assert first.report.run != second.report.run


def _process(task_path, out, cache):
    path = os.pathsep.join(map(str, (processes.WEIGHTLESS, *processes.SOURCES)))
    changes = {"UNDERSONG_CACHE": str(cache), "PYTHONPATH": path}
    command = [sys.executable, "-m", "undersong.cli", "simulate", str(task_path), "--out", str(out), "--json"]
    return subprocess.Popen(
        [*command, "--insecure-noise-seed", "5"],
        env=processes.environment(**changes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in its background with interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _outputs(folder):
    return {name: (folder / name).read_bytes() for name in WRITTEN}


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bytes(tmp_path):
    """A process is killed, and this one finishes what it began."""
    task_path = make_task(tmp_path / "task")
    run(task_path, tmp_path / "undisturbed", seed=0, insecure_noise_seed=5)
    expected = _outputs(tmp_path / "undisturbed")
    assert b"not private" in expected["README.md"].lower()
    out = tmp_path / "killed"
    pid = os.fork()
    if not pid:
        try:
            run(task_path, out, seed=0, insecure_noise_seed=5)
        finally:
            os._exit(0)
    journal = out / ".undersong" / "journal.sqlite-wal"
    wait_for(journal.exists, 60.0, every_s=0.002)
    time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "it was finished before"
    run(task_path, out, seed=0, insecure_noise_seed=5)
    assert _outputs(out) == expected


@pytest.mark.slow
def test_interrupted_simulation_says_that_nothing_is_lost(tmp_path):
    task_path = make_task(tmp_path / "task", samples=4000)
    process = _process(task_path, tmp_path / "out", tmp_path / "cache")
    while not (tmp_path / "out" / ".undersong" / "journal.sqlite-wal").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in error
    assert "Traceback" not in error


BAD = {
    "no budget": (["privacy.epsilon=0"], "privacy.epsilon"),
    "a delta of one": (["privacy.delta=1"], "privacy.delta"),
    "more parties than files": (["federation.parties=4"], "names 3 files"),
    "more dropouts than the quorum holds": (["federation.tolerated_dropouts=2"], "tolerated_dropouts"),
    "a Q too large": (["method.votes=99"], "votes"),
    "two generators of one name": (["generators.1.name=good"], "share a name|occurs twice"),
    "a user unit without users": (["privacy.unit=user", "data.user="], "user"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_a_simulation_gives_one_error_and_no_file(tmp_path, name):
    assignments, words = BAD[name]
    task_path = make_task(tmp_path / "task")
    with pytest.raises(UndersongError, match=words) as caught:
        run(task_path, tmp_path / "out", *assignments)
    assert caught.value.exit_code in (2, 3)
    assert not (tmp_path / "out").exists()


def test_a_delta_that_is_too_large_for_a_partys_units_is_refused_by_name(tmp_path):
    task_path = make_task(tmp_path / "task", privacy={"epsilon": 4.0, "delta": 0.2})
    with pytest.raises(ConfigurationError, match=r"delta 0.2 is not below 1 / 8, .* of site-0"):
        run(task_path, tmp_path / "out")


def test_empty_private_file_is_refused_naming_it(tmp_path):
    task_path = make_task(tmp_path / "task")
    (tmp_path / "task/private/site-1.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match=r"site-1.jsonl: has no rows"):
        run(task_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_finished_run_is_called_finished_and_an_unfinished_one_continued(tmp_path, monkeypatch):
    task_path = make_task(tmp_path / "task", method={"rounds": 1})
    progress, said = Silent(), []
    monkeypatch.setattr(progress, "say", said.append)

    def told() -> list[str]:
        said.clear()
        run(task_path, tmp_path / "out", progress=progress)
        return [each for each in said if str(tmp_path) in each]

    assert told() == []
    assert told() == [f"the run in {tmp_path / 'out'} is already finished: nothing is asked or charged again"]
    (tmp_path / "out" / "synthetic.jsonl").unlink()
    assert told() == [f"continuing the run in {tmp_path / 'out'}"]


def test_changed_private_records_stop_a_continued_run(tmp_path):
    task_path = make_task(tmp_path / "task", method={"rounds": 1})
    run(task_path, tmp_path / "out")
    write_rows(tmp_path / "task/private/site-1.jsonl", [{"text": "another", "label": "garden", "user": "x"}])
    with raises(PrivacyRefusal, "other-data-set"):
        run(task_path, tmp_path / "out")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_reported_and_no_half_written_file_stays(tmp_path, monkeypatch):
    task_path = make_task(tmp_path / "task", method={"rounds": 1})
    run(task_path, tmp_path / "out")
    before = _outputs(tmp_path / "out")
    from undersong_server.release import files as outputs

    real = os.fdopen
    monkeypatch.setattr(
        outputs.os, "fdopen", lambda handle, mode: (os.close(handle), real(os.open("/dev/full", os.O_WRONLY), mode))[1]
    )
    with raises(MachineFault, "enospc"):
        run(task_path, tmp_path / "out")
    monkeypatch.undo()
    assert _outputs(tmp_path / "out") == before
    assert not list((tmp_path / "out").glob("*.part"))


def test_party_that_is_dealt_no_records_still_takes_part(tmp_path):
    task_path = make_task(tmp_path / "task", parties=1, records=6, method={"rounds": 2})
    dealt = ["data.path=private/site-0.jsonl", "federation.parties=8", "federation.alpha=1.0"]
    assert min(map(len, private_tables(tasks.load(task_path, dealt), 3).values())) == 0
    delivered = run(task_path, tmp_path / "out", *dealt)
    assert delivered.report.privacy.quorum.parties == 8
    assert len(json.loads((tmp_path / "out" / "manifest.json").read_text())["receipts"]) == 8


def test_verify_does_not_report_the_simulation_s_folder_as_foreign(finished):
    folder, _ = finished
    verdict = verify(folder / "out")
    assert (verdict.workspace, verdict.outside) == (True, ())
    shown = "\n".join(verdict.lines())
    assert "'.undersong' is this simulation's own folder" in shown
    assert "unknown origin" not in shown


def test_card_states_the_epsilon_if_others_collude_as_verify_does(finished):
    folder, delivered = finished
    terms, alone = dict(delivered.report.privacy.terms), verify(folder / "out").alone
    (ran,) = [meaning for term, meaning in terms.items() if term.startswith("The same, as it ran")]
    assert ran.startswith(f"{number(alone)}, which undersong verify recomputes")
    assert 0 < alone < delivered.report.privacy.epsilon_if_all_others_collude
    assert ran in (folder / "out" / "README.md").read_text()


def test_published_ledger_entries_name_no_data_set(finished):
    folder, _ = finished
    out = folder / "out"
    entries = charges(out)
    assert {entry["kind"] for entry in entries} == {"charge", "close"}
    tables = private_tables(tasks.load(folder / "task" / "task.toml"), 3)
    for name, table in tables.items():
        ledger = Ledger.read(out / ".undersong" / "ledgers" / f"{name}.jsonl")
        key = read_keys(out / ".undersong")[f"data/{name}"]
        # whoever has the key and all rows but one could test the last one
        assert ledger.fingerprint == fingerprint(table, key)
        for path in (path for path in out.iterdir() if path.is_file()):
            content = path.read_bytes()
            assert ledger.fingerprint.encode() not in content, path
            assert key not in content, path
            assert key.hex().encode() not in content, path


def test_the_key_of_a_simulated_data_set_is_drawn_anew_for_every_run(tmp_path):
    task = tasks.load(make_task(tmp_path / "task"))
    drawn = []
    for name, seed in (("one", None), ("two", None), ("three", 5), ("four", 5)):
        workspace = Workspace(tmp_path / name, task, {}, fresh=False)
        SimulatedParties(task, workspace.state, 3, seed).draw_keys(["site-0"])
        workspace.journal.close()
        drawn.append(read_keys(workspace.state)["data/site-0"])
    assert drawn[0] != drawn[1]
    assert drawn[2] == drawn[3]  # the tests' noise seed fixes this too


def test_seed_reaches_every_random_draw_and_noise_seed_every_party(tmp_path, monkeypatch):
    seeds = {}

    def spy(module, name, seed_of, replacement=None):
        called = replacement or getattr(module, name)

        def spied(*arguments, **named):
            seeds.setdefault(name, set()).add(seed_of(*arguments, **named))
            return called(*arguments, **named)

        monkeypatch.setattr(module, name, spied)

    spy(simulation, "private_tables", lambda _task, seed: seed)
    spy(simulation, "SimulatedParties", lambda _task, _state, seed, noise_seed: (seed, noise_seed))
    spy(simulation, "build_author", lambda *_, seed, **_named: seed)
    spy(simulation, "StartedRun", lambda _name, _journal, seed: seed)
    spy(simulation, "figures_by_round", lambda *_, seed: seed)
    spy(usefulness, "figures", lambda *_, seed, **_named: seed, lambda *_, **_named: ((), ()))  # no task model
    rows: list[Row] = [{"text": f"{label} {n} is here", "label": label} for n in range(8) for label in "ab"]
    evaluation = {"test": "test.jsonl"}
    task_path = make_replay_task(
        tmp_path, rows, generators={"one": rows}, method={"name": "mixture", "samples": 4}, evaluation=evaluation
    )
    write_rows(tmp_path / "test.jsonl", [{"text": f"tested {row['text']}", "label": row["label"]} for row in rows])
    run(task_path, tmp_path / "out", seed=3, insecure_noise_seed=5)
    assert seeds.pop("SimulatedParties") == {(3, 5)}
    assert (len(seeds), set().union(*seeds.values())) == (5, {3})


@pytest.mark.slow
def test_all_prompts_with_the_baseline_s_use_the_task_s_templates(tmp_path, monkeypatch):
    task_path = make_task(tmp_path, prompts={"folder": "prompts"}, evaluation=JUDGED)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "zero_shot.toml").write_text('user = "As this house writes: {{ label }}"\n')
    asked = []
    answer = NgramGenerator.answer

    def spied(self, requests):
        asked.extend(requests)
        return answer(self, requests)

    monkeypatch.setattr(NgramGenerator, "answer", spied)
    monkeypatch.setattr(NgramSettings, "prompt_format", lambda *_: PromptFormat(reads=False))  # as if it read them
    delivered = run(task_path, tmp_path / "out")
    assert ZERO_SHOT in {row.data for row in delivered.report.accuracy}
    zero_shot = [request.prompt for request in asked if request.kind == "zero_shot"]
    assert len(zero_shot) >= 24 // 3 + len(delivered.report.samples)  # the first round and the baseline
    assert {prompt.partition(":")[0] for prompt in zero_shot} == {"As this house writes"}


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [None, "bert"])
def test_report_has_every_measure_and_interval_but_no_record(tmp_path, encoder):
    judged = {**JUDGED, "repeats": 2}
    if encoder is not None:
        judged["encoder"] = str(write_bert(tmp_path / encoder, ["pan", "oven", "rose", "spade"]))
    delivered = run(make_task(tmp_path / "task", evaluation=judged), tmp_path / "out")
    rows = [(row.data, row.model.partition(" (")[0].partition(":")[0]) for row in delivered.report.accuracy]
    kinds = ("panel", "linear head", *(() if encoder is None else ("fine-tuned bert",)))
    corpora = (usefulness.OURS, ZERO_SHOT, simulation.NO_PRIVACY)
    assert rows == [(data, kind) for data in corpora for kind in kinds]
    assert [row.ours for row in delivered.report.accuracy] == [True, *[False] * (len(rows) - 1)]
    assert all(row.interval is not None for row in delivered.report.accuracy)
    assert {"panel score", "Frechet distance", "self-similarity", "doubtful labels"} <= {
        one.name for one in delivered.report.measures
    }
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Measures of the texts" in page
    assert ("fine-tuned bert" in page) == (encoder is not None)
    assert html.escape(panel.settings()) in page
    assert panel.settings() in (tmp_path / "out" / "README.md").read_text()
    assert "over 2 seeds" in page
    assert simulation.NO_PRIVACY not in page
    assert set(delivered.to_json()["accuracy"]) == set(corpora)
    assert delivered.to_json()["accuracy"][usefulness.OURS] == delivered.report.accuracy[0].accuracy


@pytest.mark.slow
def test_task_without_labels_has_figures_of_its_texts_and_no_task_model(tmp_path):
    path = make_task(tmp_path / "task", task={"labels": []}, samples=60, evaluation=JUDGED)
    path.write_text(path.read_text().replace('label = "label"\n', ""))
    delivered = run(path, tmp_path / "out")
    assert delivered.report.accuracy == ()
    measures = {one.name: one.value for one in delivered.report.measures}
    assert {"bits per word", "Frechet distance", "self-similarity"} <= set(measures)
    assert measures["bits per word"] > 0
    assert "bits per word" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a note", "label": "attic"}, "3: its label is not in task.labels"),
        (
            {"text": " ", "label": LABELS[0]},
            "3: its text is empty",
        ),
        ({"text": "a note", "label": None}, "3: the label column 'label' is empty or not a label"),
        ({"note": "a note"}, "3: its text is empty"),
    ],
)
def test_plan_and_simulation_refuse_the_same_rows_of_every_file_at_once(tmp_path, row, said):
    path = make_task(tmp_path)
    good: Row = {"text": "a note", "label": LABELS[0], "user": "a"}
    spoilt = [write_rows(tmp_path / "private" / f"site-{n}.jsonl", [good, good, {"user": "b", **row}]) for n in (0, 1)]
    with pytest.raises(ConfigurationError) as planned:
        task_files.plan(path, environment={})
    with pytest.raises(ConfigurationError) as simulated:
        run(path, tmp_path / "out")
    assert planned.value.problem == simulated.value.problem == "\n".join(f"{file}:{said}" for file in spoilt)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_simulation_reads_private_files_once(tmp_path, monkeypatch):
    read = []

    def counted(path, *arguments, **options):
        read.append(path.name)
        return read_table(path, *arguments, **options)

    for module in ("operations.tasks", "report.usefulness"):
        monkeypatch.setattr(f"undersong_server.{module}.read_table", counted)
    run(make_task(tmp_path, evaluation=JUDGED), tmp_path / "out")
    assert sorted(read) == ["site-0.jsonl", "site-1.jsonl", "site-2.jsonl", "test.jsonl"]
