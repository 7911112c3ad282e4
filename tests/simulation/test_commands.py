"""The commands as they are typed: plan, init, evaluate; and WASP's options through whole runs."""

import json
import sys
from types import SimpleNamespace

import pytest

from tests.doubles import processes
from tests.doubles.delivery import delivered
from tests.doubles.processes import OPERATOR
from tests.doubles.tasks import LABELS, make_task, take_sizes_out
from undersong import cli
from undersong_server.release.files import JSONL_NAME
from undersong_server.runs import task as tasks

pytestmark = pytest.mark.heavy


@pytest.fixture
def undersong(capsys, monkeypatch):
    """What a command line prints and its exit code, by the program's own entry point."""

    def typed(*arguments):
        monkeypatch.setattr(sys, "argv", ["undersong", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=printed.out, stderr=printed.err)

    return typed


def test_plan_prints_the_known_sigma_of_summed_votes_and_spends_nothing(tmp_path, undersong):
    task = make_task(tmp_path, method={"rounds": 5, "votes": 8})
    before = sorted(path.name for path in tmp_path.rglob("*"))
    summed = ["privacy.epsilon=4", "privacy.unit=user", "privacy.max_per_user=8", "privacy.user_contribution=sum"]
    finished = undersong("plan", task, "--json", *(part for assignment in summed for part in ("--set", assignment)))
    assert finished.returncode == 0, finished.stderr
    plan = json.loads(finished.stdout)
    query = plan["queries"][0]
    assert query["statistic"] == "top_q_votes"
    assert query["releases"] == 4
    assert query["sigma"] == pytest.approx(28.25, rel=5e-3)
    assert plan["paper"]["sigma"] > query["sigma"]
    assert {"epsilon", "delta", "unit", "generator_calls"} <= set(plan)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("files", ["one file", "a file for each hospital"])
def test_plan_names_what_a_preset_replaces_and_where_the_task_differs(tmp_path, undersong, files):
    hospitals = 5 if files == "a file for each hospital" else 1
    task = make_task(
        tmp_path, parties=hospitals, records=20, federation={"parties": 5}, data={"path": "private/*.jsonl"}
    )
    take_sizes_out(task)
    preset = ("--method", "discriminator", "--set", "method.preset=paper")

    def plan(*changes):
        on_screen = undersong("plan", task, *preset, *changes)
        assert on_screen.returncode == 0, on_screen.stderr
        remarks = json.loads(undersong("plan", task, *preset, *changes, "--json").stdout)["remarks"]
        return " ".join(on_screen.stdout.split()), remarks[0]

    screen, remark = plan()
    assert "Federation: 15 parties" in screen
    assert remark == "the preset 'paper' replaces the task file's: federation.parties = 15, not 5"
    assert remark in screen
    screen, remark = plan("--set", "federation.parties=5")
    assert "Federation: 5 parties" in screen
    assert remark == "the task changes the preset 'paper': federation.parties = 5, not 15"
    assert remark in screen


def test_plan_command_says_that_prompts_go_to_the_model_provider(tmp_path, undersong):
    finished = undersong("plan", make_task(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert "go to the model provider" in " ".join(finished.stdout.split())


def test_init_writes_a_task_that_plan_accepts(tmp_path, undersong):
    make_task(tmp_path)
    out = tmp_path / "mine.toml"
    finished = undersong("init", "--from", tmp_path / "good.jsonl", "--out", out)
    assert finished.returncode == 0, finished.stderr
    task = tasks.load(out, ['generators.0.corpus="good.jsonl"'])
    assert set(task.task.labels) == set(LABELS)
    refused = undersong("plan", out)  # the template's corpus is one to be named
    assert (refused.returncode, "public.jsonl: no such file (generator small)" in refused.stderr) == (2, True)
    assert undersong("plan", out, "--set", 'generators.0.corpus="good.jsonl"').returncode == 0
    again = undersong("init", "--out", out)
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "nowhere.toml"], "no such file"),
        (["simulate", "nowhere.toml"], "no such file"),
        (["evaluate", "nowhere", "--test", "nowhere.jsonl"], "no such folder"),
        (["simulat"], "No such command"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_one_message(undersong, arguments, words):
    finished = undersong(*arguments)
    assert finished.returncode == 2
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.slow
def test_separate_process_ends_with_the_same_exit_code_and_message(undersong):
    here, there = undersong("plan", "nowhere.toml"), processes.command(OPERATOR, ["plan", "nowhere.toml"])
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)


def run(task, out, *assignments):
    return delivered(tasks.load(task, assignments), out)


@pytest.mark.slow
def test_wasp_asks_zero_shot_then_contrast_and_prunes_texts_by_votes(hashed, tmp_path):
    task = make_task(tmp_path / "task", samples=60)
    plain = run(task, tmp_path / "plain")
    kinds = {(sample.round, sample.kind) for sample in plain.report.samples}
    assert kinds == {(0, "zero_shot"), (1, "contrast"), (2, "contrast")}
    assert len(plain.report.privacy.epsilon_after) == 2
    assert [sum(row) for row in plain.report.weights] == pytest.approx([1.0, 1.0, 1.0])
    pruned = run(task, tmp_path / "pruned", "method.prune=true", "method.prune_share=0.5")
    assert len(pruned.report.privacy.epsilon_after) == 3
    # half of each label's texts, rounded up
    assert len(pruned.report.samples) <= len(plain.report.samples) // 2 + len(LABELS)


@pytest.mark.slow
def test_evaluate_reports_and_searches_for_copies_without_showing_them(hashed, tmp_path, undersong):
    task = make_task(tmp_path / "task", method={"rounds": 1})
    run(task, tmp_path / "out")
    copied = json.loads((tmp_path / "out" / JSONL_NAME).read_text().splitlines()[0])["text"]
    private = tmp_path / "private.jsonl"
    private.write_text(json.dumps({"text": copied, "label": LABELS[0]}) + "\n")
    finished = undersong(
        "evaluate",
        tmp_path / "out",
        "--test",
        tmp_path / "task/test.jsonl",
        "--overlap",
        private,
        "--head",
        "linear",
        "--json",
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["private"] is False
    assert 0 <= report["task_models"][0]["accuracy"] <= 1
    assert json.dumps(report["overlap"]).find(copied) == -1
    assert undersong("evaluate", tmp_path / "out").returncode == 2
