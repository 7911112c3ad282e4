"""Whole runs against an endpoint that misbehaves in one way (``tests.doubles.misbehaving_endpoint``).

Nothing paid is forgotten, no private sum is made for texts that did not come, and the same command goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.delivery import delivered
from tests.doubles.misbehaving_endpoint import Endpoint
from tests.doubles.tasks import make_task
from undersong.simulation import Delivered
from undersong_common.errors import GenerationError
from undersong_server.generators.kinds.openai import generator as openai_generator
from undersong_server.journal import Journal
from undersong_server.runs import task as tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("hashed")]

SAMPLES, ROUNDS = 36, 3


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


def texts(folder: Path) -> list[str]:
    lines = (folder / "out" / "synthetic.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def stopped(folder: Path, url: str, **fields: Any) -> GenerationError:
    with pytest.raises(GenerationError) as failure:
        run(folder, url, **fields)
    assert failure.value.exit_code == 7
    assert not (folder / "out" / "synthetic.jsonl").exists()
    return failure.value


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("balance", "Insufficient Balance"),
        ("billing", "Billing hard limit has been reached"),
        ("balance-in-200", "Insufficient credits"),
        ("key-revoked", "this key has been revoked"),
        ("parameter", "extra fields not permitted"),
    ],
)
def test_an_account_that_fails_later_stops_the_run_before_the_next_sum(
    tmp_path: Path, scenario: str, words: str
) -> None:
    with Endpoint(scenario) as broke:
        # One call at a time: an answer that arrives late would part the refusals that stop the run.
        failure = stopped(tmp_path, broke.url, concurrency=1)
        assert words in str(failure)
        assert broke.calls <= 16 + 14
        before = sums(tmp_path)
        assert before == 1  # the votes on the first step; none on texts that did not come
        again = stopped(tmp_path, broke.url)
        assert words in str(again)
        assert sums(tmp_path) == before
    with Endpoint("well") as mended:
        run(tmp_path, mended.url)
        # Answers of the other endpoint stay: they repeat numbers, so that some texts are asked for once more.
        assert mended.calls >= SAMPLES - 16
    assert len(texts(tmp_path)) == SAMPLES


@pytest.mark.parametrize(
    ("scenario", "words"), [("batch-failed", "Enqueued token limit reached"), ("batch-expired", "the window has ended")]
)
def test_batches_of_which_nothing_comes_back_stop_the_run(tmp_path: Path, scenario: str, words: str) -> None:
    with Endpoint(scenario) as broke:
        failure = stopped(tmp_path, broke.url, batch=True)
        assert words in str(failure)
        assert sums(tmp_path) == 2  # after each batch that came back
        broke.scenario = {"from": 1000}  # batches come back again
        run(tmp_path, broke.url, batch=True)
    assert len(texts(tmp_path)) == SAMPLES


@pytest.mark.parametrize("fault", ["page", "string", "body-string", "no-id", "cut"])
def test_a_line_of_a_batch_that_cannot_be_read_is_one_failed_order(tmp_path: Path, fault: str) -> None:
    with Endpoint(f"batch-line-{fault}") as endpoint:
        result = run(tmp_path, endpoint.url, batch=True)
        assert endpoint.twice == 0
        assert endpoint.calls == SAMPLES + 1
    assert len(texts(tmp_path)) == SAMPLES
    assert any(note.startswith("failed: ") for note in result.report.usage[0].notes)


def test_orders_that_are_refused_for_their_content_are_done(tmp_path: Path) -> None:
    make_task(
        tmp_path,
        samples=SAMPLES,
        task={"labels": ["kitchen", "garden", "injury"]},
        method={"name": "wasp", "rounds": ROUNDS},
    )
    with Endpoint("moderation") as endpoint:
        result = run(tmp_path, endpoint.url)
        assert {sample.label for sample in result.report.samples} == {"kitchen", "garden"}
        (use,) = result.report.usage
        assert use.faults[0] == 2 * use.count.dropped > 0
        calls = endpoint.calls
        run(tmp_path, endpoint.url)
        assert endpoint.calls == calls
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "flagged for violence" in card


PRICES = {"price_per_1k_prompt": 0.001, "price_per_1k_completion": 0.05}


def test_reasoning_tokens_beside_the_completion_count_towards_a_cap(tmp_path: Path) -> None:
    with Endpoint("reasoning-beside") as endpoint:
        failure = stopped(tmp_path, endpoint.url, price_budget_usd=2.5, **PRICES)
        assert failure.code == "budget-exhausted"
        assert endpoint.calls * (0.3 * 0.001 + 2.06 * 0.05) <= 2.5


@pytest.mark.parametrize("scenario", ["usage-zero", "usage-negative", "usage-huge"])
def test_usage_that_cannot_be_true_counts_at_its_worst_case(tmp_path: Path, scenario: str) -> None:
    with Endpoint(scenario) as endpoint:
        result = run(tmp_path, endpoint.url)
        assert endpoint.twice == 0
    (use,) = result.report.usage
    assert use.notes == [f"usage not reported: {use.count.calls}"]
    assert use.count.completion_tokens == 100 * use.count.calls
    assert len(texts(tmp_path)) == SAMPLES


def test_a_cap_holds_for_answers_that_are_lost_over_all_processes(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("scenario", "wanted"), [("latin-1-header", "männlich"), ("mark", "bed")])
def test_bytes_are_read_by_their_own_signs(tmp_path: Path, scenario: str, wanted: str) -> None:
    with Endpoint(scenario) as endpoint:
        run(tmp_path, endpoint.url)
    assert all(wanted in text for text in texts(tmp_path))


@pytest.mark.parametrize(
    ("scenario", "words", "remedy"),
    [
        ("gemini-key", "API key not valid", "set api_key_env"),
        ("error-string", "inputs and new tokens must be at most 1024", ""),
        ("error-raw", "max_tokens must be at most 256", "look after the endpoint"),
    ],
)
def test_words_are_shown_wherever_they_stand(tmp_path: Path, scenario: str, words: str, remedy: str) -> None:
    with Endpoint(scenario) as endpoint:
        failure = stopped(tmp_path, endpoint.url)
    assert words in str(failure)
    assert remedy in failure.remedy
    assert sums(tmp_path) == 0


@pytest.mark.slow
def test_a_pause_that_the_body_announces_is_kept_to(tmp_path: Path) -> None:
    with Endpoint("pause-in-body") as endpoint:
        make_task(tmp_path, samples=12, method={"name": "wasp", "rounds": 1})
        run(tmp_path, endpoint.url, concurrency=8, max_wait_s=60.0)
        assert endpoint.calls <= 20
    assert len(texts(tmp_path)) == 12
