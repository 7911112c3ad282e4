"""Whole runs of an endpoint beside something else: a fallback, further addresses, a cache, a cap on the price.

Each is played by single calls and, where the settings allow it, in batches, from the first call on and in a later
round. What holds for an endpoint alone holds here: nothing paid is forgotten, no cap is passed over all processes, no
private sum is made for texts that did not come, and the same command goes on.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.doubles.misbehaving_endpoint import SCENARIOS, Endpoint, answer, beginning
from tests.doubles.pace import slow_but
from tests.doubles.tasks import make_task
from tests.simulation.run.test_endpoint_states import (
    GOOD,
    MOMENTS,
    ROUNDS,
    SAMPLES,
    WAYS,
    check_bill,
    read_corpus,
    run,
    stopped,
    sums,
)
from undersong.cli import app
from undersong_common.errors import GenerationError
from undersong_server.generators.kinds.openai import generator as openai_generator

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("hashed")]

PRICES = {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0}
WORST_USD = 1.0  # less than a call can cost at most: its prompt has more than 500 bytes, its answer 100 tokens


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_generator, "PATIENCE_S", 0.3)


def as_fallback(url: str, **fields: Any) -> str:
    parts = {"base_url": url, "model": "other", "api_key_env": "", **fields}
    return "generators.0.fallback={" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in parts.items()) + "}"


def as_second_address(url: str) -> str:
    return f'generators.0.endpoints=[{{base_url = "{url}", api_key_env = ""}}]'


def check_whole(folder: Path) -> None:
    assert len(read_corpus(folder)) == SAMPLES
    assert sums(folder) == ROUNDS - 1


STOPPING = ("balance", "billing", "balance-in-200", "key-revoked", "parameter", "events", "page", "error-string")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "moment"),
    slow_but(product(STOPPING, MOMENTS), [("balance", "later"), ("key-revoked", "first")]),
)
def test_fallback_endpoint_writes_the_texts_that_the_first_does_not(tmp_path: Path, scenario: str, moment: str) -> None:
    good = GOOD if moment == "later" else 0
    with Endpoint(beginning(scenario, good)) as first, Endpoint(lambda n, _: answer(1000 + n)) as second:
        result = run(tmp_path, first.url, as_fallback(second.url), concurrency=1, max_retries=1)
        (use,) = result.report.usage
        billed = first.billed + second.billed
        assert use.count.prompt_tokens + use.count.completion_tokens == billed
        assert second.calls == SAMPLES - good
        assert second.paid_twice == first.paid_twice == 0
        assert (use.count.lost_tokens > 0) == (scenario in ("events", "page"))
        assert f"by other: {SAMPLES - good}" in use.notes
    check_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_fallback_that_fails_too_stops_the_run_with_its_words(tmp_path: Path, moment: str) -> None:
    good = GOOD if moment == "later" else 0
    with Endpoint(beginning("balance", good)) as first, Endpoint(beginning("key-revoked", 0)) as second:
        for _ in range(2):
            with pytest.raises(GenerationError, match="this key has been revoked") as failure:
                run(tmp_path, first.url, as_fallback(second.url), concurrency=1)
            assert failure.value.exit_code == 7
            assert sums(tmp_path) == (moment == "later")
        first.scenario = SCENARIOS["well"]
        result = run(tmp_path, first.url, as_fallback(second.url))
        check_bill(result, first)
    check_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cap_on_the_price_holds_for_both_models_over_all_processes(tmp_path: Path, moment: str) -> None:
    """The fallback is ten times as dear, and loses every second answer."""
    good = GOOD if moment == "later" else 0
    dear = {name: 10.0 * price for name, price in PRICES.items()}
    cap = 80.0  # no plan is run that is expected to take more than its cap

    def other(number: int, body: dict[str, Any]) -> Any:
        return SCENARIOS["events"](number, body) if number % 2 else answer(1000 + number)

    with Endpoint(beginning("balance", good)) as first, Endpoint(other) as second:
        fallback = as_fallback(second.url, **dear)
        for _ in range(3):
            with pytest.raises(GenerationError) as failure:
                run(tmp_path, first.url, fallback, price_budget_usd=cap, concurrency=1, **PRICES)
            assert failure.value.code == "budget-exhausted"
        lost = second.calls - second.billed // 60
        assert 0 < first.billed / 1000 + second.billed / 100 + 10 * WORST_USD * 0.6 * lost <= cap
        second.scenario = lambda number, _: answer(1000 + number)
        run(tmp_path, first.url, fallback, price_budget_usd=10_000.0, concurrency=1, **PRICES)
    check_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "moment"),
    slow_but(product(("balance", "key-revoked", "billing"), MOMENTS), [("key-revoked", "first")]),
)
def test_run_stops_if_the_account_at_one_address_is_at_fault(tmp_path: Path, scenario: str, moment: str) -> None:
    good = GOOD // 2 if moment == "later" else 0
    with Endpoint(lambda n, _: answer(1000 + n)) as first, Endpoint(beginning(scenario, good)) as second:
        for _ in range(2):
            with pytest.raises(GenerationError) as failure:
                run(tmp_path, first.url, as_second_address(second.url), concurrency=1)
            assert failure.value.exit_code == 7
            assert second.url in str(failure.value)
            assert sums(tmp_path) == (moment == "later")
        second.scenario = SCENARIOS["well"]
        result = run(tmp_path, first.url, as_second_address(second.url))
        (use,) = result.report.usage
        assert use.count.prompt_tokens + use.count.completion_tokens == first.billed + second.billed
        assert first.paid_twice == second.paid_twice == 0
    check_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_texts_of_a_busy_address_are_asked_of_the_other_address(tmp_path: Path, status: int) -> None:
    busy: Any = (status, {}, {"error": {"message": "busy"}})
    with Endpoint("well") as first, Endpoint(lambda *_: busy) as second:
        result = run(tmp_path, first.url, as_second_address(second.url))
        check_bill(result, first)
        assert second.calls > 0
    check_whole(tmp_path)


@pytest.mark.parametrize("pair", ["fallback", "endpoints"])
def test_batch_mode_with_a_fallback_or_second_address_is_refused(tmp_path: Path, pair: str) -> None:
    path = make_task(tmp_path)
    with Endpoint("well") as first, Endpoint("well") as second:
        lines = ["[[generators]]", 'name = "far"', 'kind = "openai"', 'model = "tiny"', 'api_key_env = ""']
        lines += [f'base_url = "{first.url}"', "batch = true"]
        path.write_text(path.read_text(encoding="utf-8").partition("[[generators]]")[0] + "\n".join([*lines, ""]))
        assignment = as_fallback(second.url) if pair == "fallback" else as_second_address(second.url)
        for command in ("plan", "simulate"):
            outcome = CliRunner().invoke(app, [command, str(path), "--set", assignment])
            assert outcome.exit_code == 2 or getattr(outcome.exception, "exit_code", None) == 2
            assert "leave out endpoints and fallback" in " ".join(f"{outcome.output} {outcome.exception}".split())
        assert first.calls == second.calls == len(first.batches) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("way", "moment"), slow_but(product(WAYS, MOMENTS), [("single", "later")]))
def test_answer_cache_keeps_only_texts_and_pays_for_none_twice(tmp_path: Path, way: str, moment: str) -> None:
    """An endpoint refuses from some call on, and is mended; a later run of the same task asks for nothing."""
    good = GOOD if moment == "later" else 0
    fields: dict[str, Any] = {"batch": way == "batch", "cache": str(tmp_path / "answers.sqlite")}

    def refuse(number: int, _: dict[str, Any]) -> Any:
        return answer(number) if number <= good else (200, {}, refuse_in_words(number))

    with Endpoint(refuse) as endpoint:
        failure = stopped(tmp_path, endpoint.url, **fields)
        assert "became texts" in str(failure) or failure.code == "answers-useless"
        assert sums(tmp_path) == (moment == "later")
        endpoint.scenario = SCENARIOS["well"]
        result = run(tmp_path, endpoint.url, **fields)
        check_whole(tmp_path)
        (use,) = result.report.usage
        assert use.count.prompt_tokens + use.count.completion_tokens == endpoint.billed
        calls = endpoint.calls
        other = tmp_path / "other"
        other.mkdir()
        run(other, endpoint.url, **fields)
        # Texts of the steps that a stop did not throw away are all there, unless the run was continued in between.
        assert endpoint.calls - calls <= good
    check_whole(other)
    assert read_corpus(other) == read_corpus(tmp_path) or good


def refuse_in_words(number: int) -> dict[str, Any]:
    words = f"I'm sorry, but I can't help with that request. ({number})"
    choice = {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60}}


CAPPED = {"well": 0.06, "usage-zero": WORST_USD * 0.6, "reasoning-beside": 2.36}
"""Scenarios, with the least that one of their answers counts in US dollars."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "way", "moment"),
    slow_but(
        product(CAPPED, WAYS, MOMENTS),
        [("usage-zero", "batch", "later"), ("reasoning-beside", "batch", "first")],
    ),
)
def test_cap_on_the_price_is_never_passed_and_may_be_raised(
    tmp_path: Path, scenario: str, way: str, moment: str
) -> None:
    good = GOOD if moment == "later" else 0
    share = 0.5 if way == "batch" else 1.0  # of the prices
    # No plan is run that is expected to take more than its cap.
    cap = share * 28.0
    fields: dict[str, Any] = {"price_budget_usd": cap, "batch": way == "batch", "concurrency": 1, **PRICES}
    with Endpoint(beginning(scenario, good)) as endpoint:
        codes = []
        for _ in range(3):
            try:
                run(tmp_path, endpoint.url, **fields)
            except GenerationError as failure:
                codes.append(failure.code)
        assert set(codes) <= {"budget-exhausted"}
        spent = share * (endpoint.calls - good) * CAPPED[scenario] + share * min(good, endpoint.calls) * 0.06
        assert spent <= cap
        if scenario != "well":
            assert codes == ["budget-exhausted"] * 3
        result = run(tmp_path, endpoint.url, **{**fields, "price_budget_usd": 1000.0})
        if scenario != "usage-zero":
            check_bill(result, endpoint)
        assert endpoint.paid_twice == 0
    check_whole(tmp_path)
