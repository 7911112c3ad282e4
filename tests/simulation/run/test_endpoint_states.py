"""Whole runs against an endpoint that misbehaves in one way (``tests.doubles.misbehaving_endpoint``).

Every scenario is played by single calls and in batches, from the first call on and in a later round. Nothing paid is
forgotten, no private sum is made for texts that did not come, and the same command goes on. The steps of a method spend
equal shares of epsilon on one sum each, so the sums that were made say what was spent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.doubles.delivery import delivered
from tests.doubles.misbehaving_endpoint import SCENARIOS, After, Endpoint, Minute, answer, beginning, error
from tests.doubles.pace import slow_but
from tests.doubles.processes import SOURCES
from tests.doubles.tasks import make_task
from undersong.cli import app
from undersong.run.simulation import Delivered
from undersong_common.errors import GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators.kinds.openai import generator as openai_generator
from undersong_server.report.screen import final_screen
from undersong_server.runs import task as tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("hashed")]

SAMPLES, ROUNDS = 36, 3
GOOD = 16  # calls before a fault of a later round: the first round has 12 orders
ATTEMPTS = 3  # at one order, in batches one after the other


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_generator, "PATIENCE_S", 0.3)


def run(folder: Path, url: str, *assignments: str, **fields: Any) -> Delivered:
    """The task of ``folder`` with the endpoint at ``url`` as its generator; continues the run that is there."""
    path = folder / "task.toml"
    if not path.exists():
        make_task(folder, samples=SAMPLES, method={"name": "wasp", "rounds": ROUNDS})
    table = {"name": "far", "kind": "openai", "model": "tiny", "base_url": url, "api_key_env": "", "max_tokens": 100}
    table |= {"concurrency": 4, "max_wait_s": 0.05, "batch_poll_s": 0.01, **fields}
    text = path.read_text(encoding="utf-8").partition("[[generators]]")[0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path.write_text("\n".join([text.rstrip(), "[[generators]]", *lines, ""]), encoding="utf-8")
    return delivered(tasks.load(path, assignments), folder / "out", seed=3)


def sums(folder: Path) -> int:
    journal = Journal(folder / "out" / ".undersong" / "journal.sqlite")
    try:
        return sum(key.endswith("/values") for key in journal.items("sum/"))
    finally:
        journal.close()


def read_corpus(folder: Path) -> list[str]:
    lines = (folder / "out" / "synthetic.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def stopped(folder: Path, url: str, **fields: Any) -> GenerationError:
    with pytest.raises(GenerationError) as failure:
        run(folder, url, **fields)
    assert failure.value.exit_code == 7
    assert not (folder / "out" / "synthetic.jsonl").exists()
    return failure.value


MOMENTS = ("first", "later")
WAYS = ("single", "batch")
STOPPING = {
    "balance": "Insufficient Balance",
    "billing": "Billing hard limit has been reached",
    "balance-in-200": "Insufficient credits",
    "key-revoked": "this key has been revoked",
    "parameter": "extra fields not permitted",
    "gemini-key": "API key not valid",
    "error-string": "inputs and new tokens must be at most 1024",
    "error-raw": "max_tokens must be at most 256",
    "events": "stream",
    "anthropic-credit": "credit balance is too low",
    "minimax-balance": "insufficient balance",
    "llama-context": "the available context size",
    "ndjson": "stream",
    "page": "Sign in to the network",
    "brotli": "content encoding br|no complete completion",
    "tool-calls": "4 of 12 orders became texts|are no texts (",
}
"""Scenarios that give no answer from some call on, with the endpoint's words."""
LOST = ("events", "ndjson", "page", "brotli")  # of these, those whose attempts may have been billed


def plays(scenarios: Iterable[str], usual: Collection[tuple[str, str, str]]) -> list[Any]:
    """Every scenario, way and moment; those beside the usual ones are slow."""
    return slow_but(product(scenarios, WAYS, MOMENTS), usual)


def check_bill(result: Delivered, endpoint: Endpoint) -> None:
    """Asserts that the report has every token that the endpoint billed, and that no answer was paid twice."""
    (use,) = result.report.usage
    assert use.count.prompt_tokens + use.count.completion_tokens == endpoint.billed
    assert endpoint.paid_twice == 0
    assert use.count.kept == len(result.report.samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "way", "moment"),
    plays(
        STOPPING,
        [("balance", "single", "later"), ("events", "single", "later"), ("balance-in-200", "batch", "later")],
    ),
)
def test_endpoint_fault_stops_the_run_before_the_next_sum_until_mended(
    tmp_path: Path, scenario: str, way: str, moment: str
) -> None:
    good = GOOD if moment == "later" else 0
    # One call at a time: an answer that arrives late would part the refusals that stop the run.
    fields: dict[str, Any] = {"concurrency": 1, "max_retries": 1, "batch": way == "batch"}
    with Endpoint(beginning(scenario, good)) as endpoint:
        failure = stopped(tmp_path, endpoint.url, **fields)
        assert any(words in str(failure) for words in STOPPING[scenario].split("|"))
        assert endpoint.calls <= good + ATTEMPTS * SAMPLES // ROUNDS
        assert sums(tmp_path) == (moment == "later")  # the votes on the first step; none on texts that did not come
        again = stopped(tmp_path, endpoint.url, **fields)
        assert any(words in str(again) for words in STOPPING[scenario].split("|"))
        assert sums(tmp_path) == (moment == "later")
        endpoint.scenario = SCENARIOS["well"]
        result = run(tmp_path, endpoint.url, **{**fields, "concurrency": 4})
        check_bill(result, endpoint)
    assert sums(tmp_path) == ROUNDS - 1
    assert len(read_corpus(tmp_path)) == SAMPLES
    (use,) = result.report.usage
    assert (use.count.lost_tokens > 0) == (scenario in LOST)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert ("answers lost on the way, which cost" in card) == (scenario in LOST)


BATCHES = {"batch-failed": "Enqueued token limit reached", "batch-expired": "the window has ended"}


@pytest.mark.parametrize(("scenario", "moment"), slow_but(product(BATCHES, MOMENTS), [(next(iter(BATCHES)), "later")]))
def test_endpoint_batches_without_any_answer_stop_the_run(tmp_path: Path, scenario: str, moment: str) -> None:
    good = 2 if moment == "later" else 0
    with Endpoint(beginning(scenario, good)) as endpoint:
        failure = stopped(tmp_path, endpoint.url, batch=True)
        assert BATCHES[scenario] in str(failure)
        assert sums(tmp_path) == good  # after each batch that came back
        endpoint.scenario = {"from": 1000, "status": "completed"}  # batches come back again
        result = run(tmp_path, endpoint.url, batch=True)
        check_bill(result, endpoint)
    assert sums(tmp_path) == ROUNDS - 1
    assert len(read_corpus(tmp_path)) == SAMPLES


LINES = ("page", "string", "body-string", "no-id", "cut")


@pytest.mark.parametrize(("fault", "moment"), slow_but(product(LINES, MOMENTS), [("no-id", "later")]))
def test_a_line_of_a_batch_that_cannot_be_read_is_one_failed_order(tmp_path: Path, fault: str, moment: str) -> None:
    with Endpoint(beginning(f"batch-line-{fault}", moment == "later")) as endpoint:
        result = run(tmp_path, endpoint.url, batch=True)
        assert endpoint.twice == endpoint.paid_twice == 0
        assert endpoint.calls == SAMPLES + 1
    assert sums(tmp_path) == ROUNDS - 1
    assert len(read_corpus(tmp_path)) == SAMPLES
    assert any(note.startswith("failed: ") for note in result.report.usage[0].notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "way", "moment"),
    plays(
        ("moderation", "gemini-safety", "azure-filter"),
        [("moderation", "single", "first"), ("gemini-safety", "batch", "later")],
    ),
)
def test_orders_refused_for_their_content_are_not_asked_again(
    tmp_path: Path, scenario: str, way: str, moment: str
) -> None:
    make_task(
        tmp_path,
        samples=SAMPLES,
        task={"labels": ["kitchen", "garden", "injury"]},
        method={"name": "wasp", "rounds": ROUNDS},
    )
    with Endpoint(beginning(scenario, GOOD if moment == "later" else 0)) as endpoint:
        result = run(tmp_path, endpoint.url, batch=way == "batch")
        check_bill(result, endpoint)
        assert ({sample.label for sample in result.report.samples} == {"kitchen", "garden"}) == (moment == "first")
        (use,) = result.report.usage
        assert use.faults[0] == 2 * use.count.dropped > 0
        assert len(read_corpus(tmp_path)) == SAMPLES - use.count.dropped
        calls = endpoint.calls
        run(tmp_path, endpoint.url, batch=way == "batch")
        assert endpoint.calls == calls
    assert sums(tmp_path) == ROUNDS - 1
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert scenario != "moderation" or "flagged for violence" in card


def refuse_most(number: int, body: Any) -> Any:
    if 'category "kitchen"' not in body["messages"][-1]["content"]:
        words = "Output data may contain inappropriate content."
        return error(400, {"error": {"code": "data_inspection_failed", "message": words}})
    return answer(number)


@pytest.mark.slow
@pytest.mark.parametrize("way", slow_but(WAYS, ["single"]))
def test_labels_always_refused_by_an_endpoint_end_no_run_and_are_reported(tmp_path: Path, way: str) -> None:
    """Most orders of every step are refused, so that the gate would be shut at every run if it counted them."""
    make_task(
        tmp_path,
        samples=SAMPLES,
        task={"labels": ["kitchen", "garden", "injury"]},
        method={"name": "wasp", "rounds": ROUNDS},
    )
    with Endpoint(refuse_most) as endpoint:
        result = run(tmp_path, endpoint.url, batch=way == "batch")
        check_bill(result, endpoint)
        calls = endpoint.calls
        run(tmp_path, endpoint.url, batch=way == "batch")
        assert endpoint.calls == calls
    assert result.report.refused_labels == ("garden", "injury")
    assert {sample.label for sample in result.report.samples} == {"kitchen"}
    words = "The label garden has no text: every order of it was refused for its content."
    for file in ("README.md", "report.html"):
        assert words in (tmp_path / "out" / file).read_text(encoding="utf-8")
    console = Console(width=300, record=True, file=StringIO())
    console.print(final_screen(result.report, tmp_path / "out"))
    assert "garden: no text (refused for its content)" in console.export_text()


PRICES = {"price_per_1k_prompt": 0.001, "price_per_1k_completion": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize(("way", "moment"), slow_but(product(WAYS, MOMENTS), [("batch", "later")]))
def test_reasoning_tokens_beside_the_completion_count_towards_a_cap(tmp_path: Path, way: str, moment: str) -> None:
    good = GOOD if moment == "later" else 0
    share = 0.5 if way == "batch" else 1.0  # of the prices
    cap = share * (2.0 if good else 2.5)
    with Endpoint(beginning("reasoning-beside", good)) as endpoint:
        fields: dict[str, Any] = {"price_budget_usd": cap, "batch": way == "batch", **PRICES}
        failure = stopped(tmp_path, endpoint.url, **fields)
        assert failure.code == "budget-exhausted"
        assert share * (endpoint.calls - good) * (0.3 * 0.001 + 2.06 * 0.05) <= cap
        result = run(tmp_path, endpoint.url, **{**fields, "price_budget_usd": 20.0})
        check_bill(result, endpoint)
    assert sums(tmp_path) == ROUNDS - 1
    assert len(read_corpus(tmp_path)) == SAMPLES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "way", "moment"),
    plays(
        ("usage-zero", "usage-negative", "usage-huge", "usage-float"),
        [("usage-negative", "batch", "first"), ("usage-huge", "single", "later")],
    ),
)
def test_impossible_token_usage_counts_at_its_worst_case(tmp_path: Path, scenario: str, way: str, moment: str) -> None:
    good = GOOD if moment == "later" else 0
    with Endpoint(beginning(scenario, good)) as endpoint:
        result = run(tmp_path, endpoint.url, batch=way == "batch")
        assert endpoint.twice == 0
        assert endpoint.calls == SAMPLES
    (use,) = result.report.usage
    assert use.notes == [f"usage not reported: {SAMPLES - good}"]
    assert use.count.completion_tokens == 20 * good + 100 * (SAMPLES - good)
    assert use.count.prompt_tokens > 40 * good + 500 * (SAMPLES - good)
    assert sums(tmp_path) == ROUNDS - 1
    assert len(read_corpus(tmp_path)) == SAMPLES


@pytest.mark.slow
def test_token_cap_counts_lost_answers_of_all_processes(tmp_path: Path) -> None:
    with Endpoint("events") as endpoint:
        for _ in range(3):
            assert "stream" in str(stopped(tmp_path, endpoint.url, token_budget=60_000, max_retries=1))
        # Each attempt counts with the bytes of its prompt, more than 500 here, and the longest answer.
        assert 0 < endpoint.calls <= 60_000 / 600
        assert sums(tmp_path) == 0
        failures = [stopped(tmp_path, endpoint.url, token_budget=60_000, max_retries=1) for _ in range(8)]
        assert failures[-1].code == "budget-exhausted"
        assert "stream" in str(failures[-1])
        assert endpoint.calls <= 60_000 / 600


@pytest.mark.parametrize(
    ("scenario", "way", "moment"),
    plays(
        ("latin-1-header", "mark", "well"),
        [("latin-1-header", "single", "first")],
    ),
)
def test_endpoint_answer_is_decoded_by_charset_or_byte_order_mark(
    tmp_path: Path, scenario: str, way: str, moment: str
) -> None:
    with Endpoint(beginning(scenario, GOOD if moment == "later" else 0)) as endpoint:
        result = run(tmp_path, endpoint.url, batch=way == "batch")
        assert endpoint.twice == 0
        assert endpoint.calls == SAMPLES
        if scenario != "mark":  # its body is text, which the double does not bill
            check_bill(result, endpoint)
    found = read_corpus(tmp_path)
    assert len(found) == SAMPLES
    assert sums(tmp_path) == ROUNDS - 1
    if scenario == "latin-1-header":
        assert sum("männlich" in text for text in found) == SAMPLES - (GOOD if moment == "later" else 0)


@pytest.mark.parametrize(("way", "moment"), slow_but(product(WAYS, MOMENTS), [("single", "later")]))
def test_pause_that_an_endpoint_s_answer_announces_is_kept(tmp_path: Path, way: str, moment: str) -> None:
    """Five answers in a window of time; the pause counts against no attempt, single or in a batch."""
    good = 6 if moment == "later" else 0
    with Endpoint(After(good, Minute(2.0))) as endpoint:
        make_task(tmp_path, samples=12, method={"name": "wasp", "rounds": 2})
        run(tmp_path, endpoint.url, concurrency=8, max_wait_s=60.0, batch=way == "batch")
        assert endpoint.calls <= (20 if way == "single" else 12 + 7 + 2)
        assert endpoint.paid_twice == 0
    assert len(read_corpus(tmp_path)) == 12
    assert sums(tmp_path) == 1


@pytest.mark.slow
def test_pause_of_twenty_seconds_announced_in_the_answer_is_kept(tmp_path: Path) -> None:
    with Endpoint("pause-in-body") as endpoint:
        make_task(tmp_path, samples=12, method={"name": "wasp", "rounds": 1})
        run(tmp_path, endpoint.url, concurrency=8, max_wait_s=60.0)
        assert endpoint.calls <= 20
    assert len(read_corpus(tmp_path)) == 12


@pytest.mark.slow
@pytest.mark.parametrize(("way", "moment"), slow_but(product(WAYS, MOMENTS), [("single", "later")]))
def test_slowly_trickling_answer_ends_the_run_and_counts_as_paid(tmp_path: Path, way: str, moment: str) -> None:
    good = GOOD if moment == "later" else 0
    fields: dict[str, Any] = {"timeout_s": 0.4, "deadline_s": 0.7, "max_retries": 1, "batch": way == "batch"}
    with Endpoint(beginning("trickle", good) if way == "single" else {"trickles": 1 + (good > 0)}) as endpoint:
        began = time.monotonic()
        failure = stopped(tmp_path, endpoint.url, **fields)
        assert time.monotonic() - began < 30.0
        assert "no answer within" in str(failure)
        assert sums(tmp_path) == (moment == "later")
        endpoint.scenario = SCENARIOS["well"]
        result = run(tmp_path, endpoint.url, **{**fields, "timeout_s": 20.0, "deadline_s": 60.0})
        check_bill(result, endpoint)
    assert len(read_corpus(tmp_path)) == SAMPLES
    assert sums(tmp_path) == ROUNDS - 1
    (use,) = result.report.usage
    assert (use.count.lost_tokens > 0) == (way == "single")  # the batch itself came back


@pytest.mark.slow
def test_trial_of_a_trickling_endpoint_ends_within_fifteen_seconds(tmp_path: Path) -> None:
    path = make_task(tmp_path)
    with Endpoint("trickle") as endpoint:
        table = {"name": "far", "kind": "openai", "model": "tiny", "base_url": endpoint.url, "api_key_env": ""}
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**table, "timeout_s": 3, "deadline_s": 5}.items()]
        path.write_text(path.read_text(encoding="utf-8") + "\n".join(["[[generators]]", *lines, ""]), encoding="utf-8")
        began = time.monotonic()
        outcome = CliRunner().invoke(app, ["try", "far", str(path), "--texts", "5"])
        assert time.monotonic() - began < 15.0
    assert isinstance(outcome.exception, GenerationError)
    assert outcome.exception.exit_code == 7
    assert "answers lost on the way cost" in outcome.stdout


def test_plan_says_that_lost_answers_add_to_its_cost(tmp_path: Path) -> None:
    path = make_task(tmp_path)
    words = "answer that is lost on the way comes on top"
    assert words not in " ".join(CliRunner().invoke(app, ["plan", str(path)]).stdout.split())
    table = {"name": "far", "kind": "openai", "model": "tiny", "api_key_env": ""}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path.write_text(path.read_text(encoding="utf-8") + "\n".join(["[[generators]]", *lines, ""]), encoding="utf-8")
    assert words in " ".join(CliRunner().invoke(app, ["plan", str(path)]).stdout.split())


KILLED = """
import sys
from pathlib import Path
from tests.simulation.run.test_endpoint_states import run
run(Path(sys.argv[1]), sys.argv[2], batch=sys.argv[3] == "batch")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "calls"), [("single", 8), ("single", 30), ("batch", 30)])
def test_a_killed_run_asks_again_only_what_was_in_flight(tmp_path: Path, way: str, calls: int) -> None:
    """kill -9 at a moment of the first or of a later round, where no usage is reported."""
    children: list[subprocess.Popen[bytes]] = []

    def answer_and_kill(number: int, body: dict[str, Any]) -> Any:
        if number == calls:
            children[0].send_signal(signal.SIGKILL)
        return SCENARIOS["usage-zero"](number, body)

    with Endpoint(answer_and_kill) as endpoint:
        for _ in range(2):
            command = [sys.executable, "-c", KILLED, str(tmp_path), endpoint.url, way]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
            children.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
            code = children[-1].wait(timeout=200)
        assert children[0].returncode == -signal.SIGKILL
        assert code == 0
        assert endpoint.twice <= (4 if way == "single" else 0)
        assert SAMPLES <= endpoint.calls <= SAMPLES + 4
    assert len(read_corpus(tmp_path)) == SAMPLES
    assert sums(tmp_path) == ROUNDS - 1
