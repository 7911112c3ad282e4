"""The comparison: its grid, its pairing by seed, its verdicts, and cells that are never measured twice."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from undersong.comparison import cell as comparison_cell
from undersong.comparison import grid as comparing
from undersong.comparison import table as compare_table
from undersong.comparison.cell import HEADINGS, Bench, Variant, measured
from undersong.comparison.grid import compared
from undersong.comparison.table import ComparisonGrid, markdown, page, summary
from undersong.library.results import Comparison
from undersong.run.options import ComparisonOptions
from undersong.run.records import dealt
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.text.overlap import equal_rows
from undersong_common.text.table import read_table
from undersong_server.evaluation.metrics import frechet_distance
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.progress import Silent


def grid(**changes):
    given = {
        "methods": ["wasp", "mixture", "private-only"],
        "epsilons": [1.0, 4.0],
        "parties": [1, 10],
        "records": [100, 300],
        "seeds": [0, 1, 2],
    }
    return ComparisonGrid.of(ComparisonOptions(**(given | changes)))


def figures(accuracy, frechet=0.1):
    return {
        "accuracy": accuracy,
        "balanced_accuracy": accuracy,
        "macro_f1": accuracy,
        "rarest_recall": accuracy,
        **{"words": accuracy - 0.03, "head": accuracy + 0.01, "mlp": accuracy + 0.02},
        "frechet": frechet,
        "seconds": {"simulation": 1.0, "evaluation": 0.5},
    }


def test_comparison_runs_a_variant_once_for_axes_it_does_not_depend_on():
    cells = grid().cells()
    per_variant = {
        name: sum(cell.variant.name == name for cell in cells) for name in ("wasp", "mixture", "private-only")
    }
    assert per_variant == {"wasp": 2 * 2 * 3, "mixture": 3, "private-only": 2 * 3}
    assert len({cell.name for cell in cells}) == len(cells)


def test_comparison_variants_are_parsed_and_wrong_ones_refused():
    assert Variant.parse("wasp:votes=1+rounds=3").options == (("votes", "1"), ("rounds", "3"))
    assert Variant.parse("augpe@good:rounds=3") == Variant("augpe@good:rounds=3", "augpe", (("rounds", "3"),), "good")
    with pytest.raises(ConfigurationError, match="wasp"):
        Variant.parse("wosp")
    with raises(ConfigurationError, "no-option"):
        Variant.parse("wasp:votes")
    with raises(ConfigurationError, "other-sizes"):
        grid(records=[1, 2, 3])
    with raises(ConfigurationError, "no-baseline"):
        grid(baseline="augpe")
    with raises(ConfigurationError, "no-epsilon"):
        grid(epsilons=[0.0])


def test_comparison_variant_ignores_the_options_of_another_method(bench):
    cell = next(cell for cell in grid().cells() if cell.variant.name == "mixture")
    assert bench.task(cell).options.samples == 40
    alone = grid(methods=["wasp@two:votes=1+furthest=false"]).cells()[0]
    task = bench.task(alone)
    assert [generator.name for generator in task.generators] == ["two"]
    assert (task.options.votes, task.options.furthest) == (1, False)
    with raises(ConfigurationError, "no-generator"):
        bench.task(grid(methods=["augpe@three"]).cells()[0])


@pytest.mark.heavy
def test_task_options_that_a_variant_ignores_are_named_once(bench, tmp_path, monkeypatch):
    said = []

    class Listening(Silent):
        def say(self, message):
            said.append(message)

    monkeypatch.setattr(
        comparing, "_measure_cells", lambda _bench, cells, *_: [(c, UndersongError("no")) for c in cells]
    )
    shape = grid(methods=["wasp", "dpkps:vocabulary_words=200+pairs=8"], epsilons=[1.0, 4.0])
    with raises(ConfigurationError, "no-cell"):
        comparing.compare(bench, shape, tmp_path / "out", jobs=1, progress=Listening())
    aside = [message for message in said if "set aside" in message]
    assert len(aside) == 1
    assert aside[0].startswith("dpkps:")
    assert aside[0].endswith("rounds, votes, examples, shortlist")


def paired(ours, theirs):
    import pandas  # not loaded where other tests are collected

    one, other = (pandas.DataFrame({"figure": pandas.Series(each)}) for each in (ours, theirs))
    return compare_table._paired_difference("figure", one, other)


def test_paired_interval_is_student_s_t_interval_of_the_differences():
    from scipy.stats import ttest_rel

    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=12), rng.normal(size=12)
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found["figure_low"] == pytest.approx(expected.low)
    assert found["figure_high"] == pytest.approx(expected.high)


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([1.0, 1.1, 0.9], "higher"),
        ([-1.0, -1.1, -0.9], "lower"),
        ([1.0, -1.2, 0.3], "none shown"),
        ([5.0], "none shown"),
    ],
)
def test_difference_is_called_higher_or_lower_only_beyond_its_interval(gaps, verdict):
    found = paired(dict(enumerate(gaps)), dict.fromkeys(range(len(gaps)), 0.0))
    assert found["figure_called"] == verdict


def test_only_seeds_that_both_methods_have_are_paired():
    assert paired({0: 1.0, 1: 2.0, 5: 9.0}, {0: 0.0, 1: 1.0, 7: 0.0})["figure_difference"] == 1.0
    assert math.isnan(paired({0: 1.0}, {1: 1.0})["figure_difference"])


@pytest.mark.heavy
def test_comparison_table_has_the_same_figures_in_every_format():
    shape = grid(epsilons=[4.0], parties=[1], records=[100])
    values = {}
    for cell in shape.cells():
        base = {"wasp": 0.85, "mixture": 0.80, "private-only": 0.85}[cell.variant.name]
        value = figures(base + 0.001 * cell.seed * (-1 if cell.variant.name == "private-only" else 1))
        weights = {"good": 0.75, "weak": 0.25} if cell.variant.name == "wasp" else None
        values[cell] = value | {"rows": 90, "weights": weights}
    table = compare_table.summary(shape, values)
    assert list(table["method"]) == ["wasp", "mixture", "private-only"]
    rows = list(csv.DictReader(io.StringIO(table.to_csv(index=False))))
    assert [row["accuracy_called"] for row in rows] == ["", "lower", "none shown"]
    document = compare_table.markdown("title", shape, table, "undersong compare task.toml")
    assert (
        "| mixture | 4 | 1 | 100 | 3 | 80.10 | 0.10 | 80.00 | 77.10 | 81.10 | 82.10 | 80.10 | 80.10 | 90 |" in document
    )
    assert "## Weights of the generators" in document
    assert "| wasp | 4 | 1 | 100 | 0.750 | 0.250 |" in document
    assert rows[0]["weight good"] == "0.75"
    assert rows[1]["weight good"] == ""
    page = compare_table.page("<title>", shape, table, "undersong compare")
    assert "&lt;title&gt;" in page
    assert page.count("<svg") == 2
    assert "http" not in page
    assert json.dumps(compare_table.to_json(shape, table), allow_nan=False)


def test_generator_missing_under_one_seed_counts_with_weight_zero_there():
    shape = grid(methods=["wasp"], epsilons=[4.0], parties=[1], records=[100], seeds=[0, 1])
    weights = {0: {"good": 1.0}, 1: {"good": 0.5, "weak": 0.5}}
    table = summary(shape, {cell: figures(0.8) | {"weights": weights[cell.seed]} for cell in shape.cells()})
    assert (table["weight good"][0], table["weight weak"][0]) == (0.75, 0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "interval"), slow_after([([0], "-"), ([0, 1], "-15.71 to 9.71"), ([0, 1, 2], "-8.97 to 0.97")], 2)
)
def test_comparison_screen_shows_score_difference_interval_and_time(tmp_path, seeds, interval):
    shape = grid(methods=["wasp", "mixture"], epsilons=[4.0], parties=[], records=[], seeds=seeds)
    lower = {"wasp": 0.0, "mixture": 0.02}
    values = {cell: figures(0.85 - lower[cell.variant.name] * (1 + cell.seed)) for cell in shape.cells()}
    rows = compare_table.to_json(shape, compare_table.summary(shape, values))
    shown = str(Comparison(tmp_path, "comparison", rows))
    lines = [line.split() for line in shown.split("\n")]
    assert ["wasp", "4", "task's", "all", str(len(seeds)), "85.00", "reference", "1.5"] in lines
    (mixture,) = (line for line in lines if line[:1] == ["mixture"])
    assert " ".join(mixture[7:-1]) == interval
    assert ("take more seeds" in shown) == (len(seeds) < 3)
    assert ("take more seeds" in markdown("t", shape, compare_table.summary(shape, values), "c")) == (len(seeds) < 3)


@pytest.mark.heavy
def test_comparison_measures_diversity_and_distances():
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(["red", "blue", "green", "grey"], 6)) for _ in range(60)]
    x = rng.normal(size=(120, 8)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = measured(texts, ["a", "b"] * 30, x[:60], x[60:], row_count=40, seed=0)
    assert set(found) == set(HEADINGS)
    assert all(value is not None for value in found.values())
    assert found["frechet"] == frechet_distance(*equal_rows(x[:60], x[60:], rows=40, seed=0))
    few = measured(texts[:30], ["a", "b"] * 15, x[:30], x[60:], row_count=40, seed=0)
    assert [name for name, value in few.items() if value is not None] == ["wrong_labels"]


@pytest.mark.heavy
def test_every_measure_appears_in_every_format_of_the_comparison_table():
    wanted = grid(epsilons=[4.0], parties=[1], records=[100])
    more = {"mauve": 0.875, "coverage": 0.625}
    found = {cell: figures(0.8) | more for cell in wanted.cells()}
    table = summary(wanted, found)
    assert table["mauve_mean"][0] == 0.875
    assert math.isnan(table["vendi_mean"][0])  # cells of an earlier version
    for form in (markdown("t", wanted, table, "c"), page("t", wanted, table, "c"), table.to_csv(index=False)):
        assert "0.875" in form
        assert "0.625" in form
    assert "Closeness and diversity" in markdown("t", wanted, table, "c")


@pytest.mark.heavy
def test_comparison_table_has_precision_recall_and_f1_of_every_method():
    """Corpora have the panel's means, a classifier its own; a task without labels has no such section."""
    shape = grid(methods=["wasp"], epsilons=[1.0], parties=[], records=[])
    values = {cell: figures(0.5) | {"weighted_f1": 0.25 + cell.seed / 8} for cell in shape.cells()}
    document = markdown("t", shape, summary(shape, values), "c")
    section = document.split("## Precision, recall and F1")[1].split("##")[0]
    assert "| macro P % | macro R % | macro F1 % | weighted P % | weighted R % | weighted F1 % |" in section
    assert section.rstrip().endswith("| - | - | - | - | - | 37.50 |")
    unlabelled = {cell: {"bits_per_word": 9.0, "seconds": {}} for cell in shape.cells()}
    assert "Precision" not in markdown("t", shape, summary(shape, unlabelled), "c")


@pytest.mark.heavy
def test_comparison_skips_finished_cells_and_repeats_failed_ones(bench, tmp_path, monkeypatch):
    shape = grid(methods=["wasp", "mixture"], parties=[], records=[])
    asked = []

    def measure(self, cell):
        asked.append(cell)
        if cell.seed == 2 and len(asked) <= len(shape.cells()):
            raise UndersongError("out of luck")
        return figures(0.5)

    monkeypatch.setattr(Bench, "measure", measure)
    first = comparing.compare(bench, shape, tmp_path / "out", jobs=1, progress=Silent())
    assert len(asked) == len(shape.cells())
    second = comparing.compare(bench, shape, tmp_path / "out", jobs=1, progress=Silent())
    assert len(first) + sum(cell.seed == 2 for cell in shape.cells()) == len(second) == len(shape.cells())
    assert {cell.seed for cell in asked[len(shape.cells()) :]} == {2}
    other = Bench(bench.task_file, ("privacy.delta=1e-6",), bench.test, 10)
    with raises(ConfigurationError, "other-comparison"):
        comparing.compare(other, shape, tmp_path / "out", jobs=1, progress=Silent())


def test_comparison_variant_that_cannot_run_is_refused_before_any_cell(bench, tmp_path):
    with pytest.raises(ConfigurationError, match="votes"):
        comparing.compare(bench, grid(methods=["wasp:votes=99"]), tmp_path / "out", jobs=1, progress=Silent())
    assert not (tmp_path / "out").exists()


def test_worker_reads_private_files_once_for_all_its_cells(bench, monkeypatch):
    read = []

    def counted(path, *arguments, **options):
        read.append(path.name)
        return read_table(path, *arguments, **options)

    monkeypatch.setattr("undersong_server.operations.tasks.read_table", counted)
    cells = [grid().cell(Variant.parse("wasp"), 4.0, (10, 100), seed) for seed in (0, 1)]
    first, second = (dealt(bench.task(cell), bench._private_files, cell.seed) for cell in cells)
    assert read == ["private.jsonl"]
    assert len(first) == len(second) == 10
    assert first != second


@pytest.mark.heavy
@pytest.mark.usefixtures("hashed")
def test_cell_hands_its_seed_to_the_simulation_and_to_its_noise_seed(bench, monkeypatch):
    class Reached(Exception):
        pass

    def simulated(_run_plan, _workspace, _tables, options, *_):
        raise Reached(options.seed, options.insecure_noise_seed)

    monkeypatch.setattr(comparison_cell, "simulate", simulated)
    seeded = replace(bench, insecure_noise_seed=100)
    [last_cell] = grid(methods=["wasp"], epsilons=[4.0], parties=[1], records=[100], seeds=[7]).cells()
    with pytest.raises(Reached) as reached:
        seeded.made(last_cell)
    assert reached.value.args == (7, 107)


def test_task_without_labels_is_judged_by_next_word_prediction(bench, tmp_path, embedded_by, monkeypatch):
    text = (tmp_path / "task.toml").read_text().replace('labels = ["a", "b"]\n', "").replace('label = "label"\n', "")
    (tmp_path / "task.toml").write_text(text)
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"text": f"a text number {n}"}) + "\n" for n in range(20)))

    embedded_by(lambda texts: np.ones((len(texts), 2), dtype=np.float32))
    monkeypatch.setattr("undersong.comparison.cell.measured", lambda *_given, **_options: {})
    shape = grid(methods=["private-only"], epsilons=[4.0], parties=[], records=[], seeds=[0, 1])
    found = comparing.compare(bench, shape, tmp_path / "out", jobs=1, progress=Silent())
    assert all(0 < value["bits_per_word"] < 5 and "accuracy" not in value for value in found.values())
    table = summary(shape, found)
    document = markdown("t", shape, table, "c")
    assert "| bits per word | deviation | worst run | rows | Frechet |" in document
    assert f"| private-only | 4 | task's | all | 2 | {table['bits_per_word_mean'][0]:.3f} |" in document
    assert "trigram model" in page("t", shape, table, "c")


COMMAND = {"epsilons": [4.0], "jobs": 1}
ONE = {"command": "one", "progress": Silent()}


@pytest.mark.slow
def test_second_compare_command_adds_to_the_table_written_so_far(bench, tmp_path, monkeypatch):
    out, written = tmp_path / "out", []

    def measure(self, cell):
        written.append((out / "comparison.md").exists())
        return figures(0.5 + 0.01 * cell.seed)

    monkeypatch.setattr(Bench, "measure", measure)
    given = {**COMMAND, "test": bench.test, "out": out}
    compared(bench.task_file, ComparisonOptions(methods=["wasp", "private-only"], seeds=range(2), **given), **ONE)
    assert written[0] is False
    assert all(written[1:])
    found = compared(
        bench.task_file,
        ComparisonOptions(methods=["mixture+labels"], seeds=range(1, 4), **given),
        command="two",
        progress=Silent(),
    )
    assert [(row["method"], row["accuracy_seeds"]) for row in found["rows"]] == [
        ("wasp", 2),
        ("private-only", 2),
        ("mixture+labels", 3),
    ]
    assert found["baseline"] == "wasp"
    assert found["rows"][2]["accuracy_difference"] == 0  # of the one seed that both have
    document = (out / "comparison.md").read_text()
    assert "    one\n    two\n" in document
    assert len(written) == 2 * 2 + 3
    found = compared(
        bench.task_file, ComparisonOptions(methods=["wasp"], seeds=range(1), baseline="private-only", **given), **ONE
    )
    assert (found["baseline"], len(found["rows"]), len(written)) == ("private-only", 3, 7)
    with raises(ConfigurationError, "other-comparison"):
        compared(
            bench.task_file,
            ComparisonOptions(methods=["pretext"], seeds=range(1), **given),
            assignments=["privacy.delta=1e-6"],
            **ONE,
        )


@pytest.mark.slow
def test_second_compare_command_on_a_folder_in_use_is_refused(bench, tmp_path, monkeypatch):
    given = {**COMMAND, "test": bench.test, "out": tmp_path / "out", "seeds": [0]}
    refused = []

    def measure(self, cell):
        with raises(ConfigurationError, "folder-in-use") as second:
            compared(bench.task_file, ComparisonOptions(methods=["mixture"], fresh=True, **given), **ONE)
        refused.append(second.value.remedy)
        return figures(0.5)

    monkeypatch.setattr(Bench, "measure", measure)
    found = compared(bench.task_file, ComparisonOptions(methods=["wasp", "mixture"], **given), **ONE)
    assert len(refused) == len(found["rows"]) == 2
    monkeypatch.setattr(Bench, "measure", lambda _self, _cell: figures(0.6))
    found = compared(
        bench.task_file, ComparisonOptions(methods=["wasp", "mixture", "private-only"], **given), **ONE
    )  # the lock went with its command
    assert [row["accuracy_mean"] for row in found["rows"]] == [0.5, 0.5, 0.6]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("task.toml: one.jsonl", "no such file"),
        ("one.jsonl: label", "no column 'label'"),
        ("private.jsonl: text", "column 'text'"),
        ("task.toml: delta = 1e-05", "not below 1"),
    ],
)
def test_fault_that_would_stop_a_cell_is_found_before_the_first_cell(bench, tmp_path, monkeypatch, broken, said):
    monkeypatch.setattr(Bench, "measure", lambda _bench, _cell: pytest.fail("a cell was begun"))
    name, _, word = broken.partition(": ")
    text = (tmp_path / name).read_text()
    (tmp_path / name).write_text(text.replace(word, "delta = 0.5" if "delta" in word else "other"))
    with pytest.raises(ConfigurationError, match=said):
        comparing.compare(bench, grid(parties=[], records=[]), tmp_path / "out", jobs=1, progress=Silent())
    assert not (tmp_path / "out").exists()


def test_embeddings_of_public_records_are_shared_between_processes(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    private = bench.private
    assert private is not bench.public
    row = np.arange(4, dtype=np.int16)
    private.put([(b"k" * 32, row)])
    open_bench, other = (Bench(bench.task_file, (), bench.test, 10, public_data=True) for _ in range(2))
    assert not open_bench.private.get([b"k" * 32])
    open_bench.private.put([(b"k" * 32, row)])
    assert other.private.get([b"k" * 32])[b"k" * 32].tolist() == row.tolist()


@pytest.mark.slow
def test_real_cells_in_workers_are_reproducible_and_pair_by_seed(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    shape = grid(methods=["wasp", "mixture", "private-only", "augpe@one"], epsilons=[4.0], parties=[2], records=[20])
    shape = ComparisonGrid(shape.variants, shape.epsilons, shape.federations, (0, 1), shape.baseline)
    fixed = Bench(bench.task_file, ("data.file_records=120",), bench.test, 10, insecure_noise_seed=5)
    runs = [
        comparing.compare(fixed, shape, tmp_path / name, jobs=jobs, progress=Silent())
        for name, jobs in (("first", 1), ("second", 2))
    ]
    assert len(runs[0]) == 4 * 2
    for cell, value in runs[0].items():
        assert {**value, "seconds": 0} == {**runs[1][cell], "seconds": 0}
        assert value["epsilon_spent"] is None or value["epsilon_spent"] == pytest.approx(4.0, rel=1e-3)
    table = compare_table.summary(shape, runs[0])
    assert list(table["method"]) == ["wasp", "mixture", "private-only", "augpe@one"]


def test_utility_benchmark_names_the_missing_test_file(tmp_path):
    from benchmarks import utility

    with pytest.raises(ConfigurationError, match=r"test\.jsonl"):
        utility.main(["--quick", "--data", str(tmp_path), "--out", str(tmp_path / "out")])


@pytest.mark.heavy
def test_workers_end_with_a_parent_that_was_killed():
    script = (
        "import multiprocessing, os, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from undersong.run import processes\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    pool = ProcessPoolExecutor(1, mp_context=context, initializer=processes._begin_worker)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not Path(f"/proc/{worker}").exists() or " Z " in Path(f"/proc/{worker}/stat").read_text():
            return
        time.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


@pytest.mark.parametrize("options", [ComparisonOptions(), EvaluationOptions()])
def test_option_public_data_is_off_by_default(options):
    assert options.public_data is False
