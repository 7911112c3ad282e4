"""Whole simulations with an endpoint that answers as endpoints do: what it gives wrong never becomes a sample."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.chat_server import ChatServer, FaultProxy, completion, serving
from tests.doubles.coded import raises
from tests.doubles.delivery import delivered
from tests.doubles.processes import SOURCES
from tests.doubles.refusals import REFUSALS
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.tiny_llama import save_tiny_llama
from tests.doubles.tiny_t5 import save_tiny_t5
from undersong.run.simulation import Delivered
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators import author
from undersong_server.generators.interface import BudgetExhausted
from undersong_server.operations import tasks as task_files
from undersong_server.runs import task as tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("hashed")]

KEY = {"TEST_API_KEY": "secret-key"}
SAID = [said for each in REFUSALS.values() for said in each if "out of bounds" not in said]
WORDS = {
    LABELS[0]: "pan oven soup knife plate salt stove bread",
    LABELS[1]: "rose spade soil hedge lawn seed tree pond",
}


class Writer:
    """Writes a different text at every call, spoiled as ``spoil`` says for its number."""

    def __init__(self, spoil: Callable[[int, str], dict[str, Any] | None] = lambda _number, _text: None) -> None:
        self.calls = 0
        self.prompts: list[str] = []
        self._spoil = spoil
        self._lock = threading.Lock()

    def __call__(self, prompt: str) -> dict[str, Any]:
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
            self.prompts.append(prompt)
        words = next((WORDS[label] for label in LABELS if label in prompt), WORDS[LABELS[0]]).split()
        picked = [words[(number // 8**place + place) % 8] for place in range(4)]
        first = f"The {' near the '.join(picked)} needs {number} things."
        text = f"{first} It was {number * 7919} days ago, at the {picked[0]}."
        return self._spoil(number, text) or completion(f"<text>{text}</text>")


def run(folder: Path, out: Path, url: str, *assignments: str, **generator: Any) -> Delivered:
    """The task of ``folder`` with one endpoint as its generator."""
    table: dict[str, Any] = {
        "name": "far",
        "kind": "openai",
        "model": "tiny",
        "base_url": url,
        "api_key_env": "TEST_API_KEY",
    }
    table |= {"max_wait_s": 0.01, "max_tokens": 100, **generator}
    path = folder / "task.toml"
    if not path.exists():
        make_task(folder, samples=24)
    text = path.read_text(encoding="utf-8").partition("[[generators]]")[0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path.write_text("\n".join([text.rstrip(), "[[generators]]", *lines, ""]), encoding="utf-8")
    options = {"seed": 3, "insecure_noise_seed": None, "public_cache": folder / "cache.sqlite", "environment": KEY}
    return delivered(tasks.load(path, assignments), out, **options)


def opened(out: Path) -> list[str]:
    journal = Journal(out / ".undersong" / "journal.sqlite")
    try:
        return [key for key in journal.items("sum/") if key.endswith("/values")]
    finally:
        journal.close()


def texts(out: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (out / "synthetic.jsonl").read_text(encoding="utf-8").splitlines()]


def refuse(number: int, _text: str) -> dict[str, Any]:
    return completion(SAID[number % len(SAID)])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["wasp", pytest.param("dpkps", marks=pytest.mark.slow)])
def test_endpoint_that_only_refuses_costs_no_privacy_until_mended(tmp_path: Path, method: str) -> None:
    (tmp_path / "words.txt").write_text("pan\noven\nsoup\nrose\nspade\nsoil\n", encoding="utf-8")
    options = {
        "wasp": (),
        "dpkps": ("method.name=dpkps", "method.vocabulary=words.txt", "method.pairs=16", "method.examples=[]",
                  "method.length=2", "method.false_terms=0.99", "method.document_terms=3", "privacy.epsilon=12.0"),
    }[method]  # fmt: skip
    refusing, mended = Writer(refuse), Writer()
    with serving(ChatServer(refusing)) as server, pytest.raises(GenerationError) as failure:
        run(tmp_path, tmp_path / "out", server.url, *options)
    assert failure.value.exit_code == 7
    assert not isinstance(failure.value, ConfigurationError)
    assert "refused" in str(failure.value)
    assert "undersong try" in str(failure.value)
    assert any(said[:20] in str(failure.value) for said in SAID)
    assert refusing.calls <= 24
    assert opened(tmp_path / "out") == []
    with serving(ChatServer(mended)) as server:
        run(tmp_path, tmp_path / "out", server.url, *options, model="tiny", temperature=0.5)
    assert opened(tmp_path / "out")
    assert not set(texts(tmp_path / "out")) & set(SAID)


def spoil(number: int, text: str) -> dict[str, Any] | None:
    """Every third answer is spoiled, in turn by everything that may be wrong with one."""
    if number % 3:
        return None
    ways: list[dict[str, Any]] = [
        completion(SAID[number % len(SAID)]),
        completion(None, refusal="I can't help with that."),
        completion("", reason="content_filter"),
        completion(""),
        completion("<html><body>Sign in to the network</body></html>"),
        completion("1. Where is the pan?\n2. Why is the oven cold?\n3. Who has the knife?"),
        completion(f"<text>{text[:40]}", reason="length"),
        completion("The user wants a new text. It should mention a pan."),
        completion("Dear [Name], the soup is cold."),
        completion(f"Sure, here is a new text:\n\n{text}\n\nLet me know if you need more!"),
    ]
    return ways[number // 3 % len(ways)]


@pytest.mark.slow
def test_corpus_holds_only_texts_and_the_counts_are_right(tmp_path: Path) -> None:
    writer = Writer(spoil)
    faults: list[Any] = [
        ("status", 429, {"retry-after": "0"}), "pass", ("status", 429, {"retry-after-ms": "5"}), "cut", "pass",
        ("status", 429, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}), "page", ("status", 503, {}), "garbage",
        "not a completion",
        ("status", 429, {"retry-after": "soon"}), "cut at once", ("status", 500, {}), ("slow", 0.05),
    ]  # fmt: skip
    with serving(ChatServer(writer)) as server, serving(FaultProxy(server, faults * 4)) as proxy:
        delivered = run(tmp_path, tmp_path / "out", proxy.url, "method.samples=60", max_retries=20, concurrency=2)
    found = texts(tmp_path / "out")
    assert len(found) >= 50
    assert all(text.startswith("The ") and "things. It was " in text for text in found)
    assert all(text.rstrip(".").split()[-1] in " ".join(WORDS.values()) for text in found)
    (use,) = delivered.report.usage
    kinds = Counter(dict(use.other)) + Counter(refused=use.faults[0])
    assert use.count.orders == 60
    assert use.count.kept == len(found) == 60 - use.count.dropped
    assert use.count.calls == use.count.kept + use.count.dropped + use.count.retried
    assert use.count.retried + use.count.dropped == sum(kinds.values()) + sum(use.faults[1:])
    assert (
        min(kinds[kind] for kind in ("refused", "empty", "page or data", "several texts", "analysis", "placeholder"))
        >= 1
    )
    assert use.count.cut >= 1
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"| far | openai | 60 | {use.count.kept} | {use.faults[0]} | {use.count.cut} |" in card
    assert "several texts" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("key", "cap"), [("price_budget_usd", 16.0), ("token_budget", 14_000)])
def test_cap_below_the_expected_cost_is_refused_before_any_call(tmp_path: Path, key: str, cap: float) -> None:
    writer = Writer()
    given = {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0, key: cap}
    with serving(ChatServer(writer)) as server, pytest.raises(ConfigurationError) as simulated:
        run(tmp_path, tmp_path / "out", server.url, **given)
    with pytest.raises(ConfigurationError) as planned:
        task_files.plan(tmp_path / "task.toml", environment=KEY)
    assert planned.value.problem == simulated.value.problem
    assert f"generator far: {key} is {cap:g}" in planned.value.problem
    assert (writer.calls, (tmp_path / "out").exists()) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["price_budget_usd", "token_budget"])
def test_cap_between_expected_and_highest_cost_is_taken_with_a_warning(tmp_path: Path, key: str) -> None:
    prices = {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0}
    with serving(ChatServer(Writer())) as server:
        run(tmp_path, tmp_path / "out", server.url, **prices)
        cost = task_files.plan(tmp_path / "task.toml", environment=KEY).figures.cost
        assert cost is not None
        assert cost.price_usd is not None
        low, high = cost.tokens if key == "token_budget" else cost.price_usd
        expected = math.ceil((low + high) / 2)

        def warned(cap: float) -> bool:
            weak = task_files.plan(tmp_path / "task.toml", [f"generators.0.{key}={cap}"], environment=KEY).figures.weak
            return any("may stop early, and has spent epsilon" in each for each in weak)

        with pytest.raises(ConfigurationError, match="is expected to take"):
            warned(expected - 1)
        assert warned(expected)
        assert warned(math.ceil(high) - 1)
        assert not warned(math.ceil(high))
        run(tmp_path, tmp_path / "second", server.url, **prices, **{key: expected})
    assert (tmp_path / "second" / "report.html").exists()


@pytest.mark.slow
def test_run_with_a_raised_price_cap_continues_with_what_was_paid(tmp_path: Path) -> None:
    writer = Writer(lambda _number, text: completion(f"<text>{text}</text>", usage=(2000, 100)))  # more than planned
    prices = {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0, "concurrency": 2}
    with serving(ChatServer(writer)) as server:
        with pytest.raises(BudgetExhausted, match="raise the budget and run the same command again"):
            run(tmp_path, tmp_path / "out", server.url, price_budget_usd=40.0, **prices)
        asked = writer.calls
        assert 0 < asked < 24
        delivered = run(tmp_path, tmp_path / "out", server.url, price_budget_usd=300.0, **prices)
    assert len(writer.prompts) == len(set(writer.prompts))
    (use,) = delivered.report.usage
    assert use.count.calls == writer.calls
    assert use.count.price_usd == pytest.approx(2.1 * writer.calls)


def test_run_folder_refuses_another_model_under_the_same_generator_name(tmp_path: Path) -> None:
    with serving(ChatServer(Writer())) as server:
        run(tmp_path, tmp_path / "out", server.url)
        with raises(ConfigurationError, "other-run"):
            run(tmp_path, tmp_path / "out", server.url, name="other")


PROGRAM = """
import sys
from pathlib import Path
from undersong_server.generators.author import Author
from undersong_server.generators.kinds.openai import OpenAIGenerator
from undersong_server.generators.orders import Order
from undersong_server.generators.kinds.openai import OpenAISettings
from undersong_server.database.journal import Journal
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

folder, url, cap = sys.argv[1:]
far = OpenAIGenerator(
    OpenAISettings(
        name="far", kind="openai", model="tiny", base_url=url, api_key_env="", concurrency=2, max_tokens=100,
        price_per_1k_prompt=1.0, price_per_1k_completion=1.0, price_budget_usd=float(cap),
    ),
    environment={},
)
prompts = Prompts(TaskWords(description="a short remark", labels=("kitchen", "garden")))
author = Author({"far": far}, prompts, Journal(Path(folder) / "journal.sqlite"), Silent(), seed=1)
written = author.write("round 1", 0, [Order("far", "zero_shot", "kitchen")] * 40)
(Path(folder) / "texts").write_text(str(len({sample.text for sample in written if sample})))
"""


@pytest.mark.slow
@pytest.mark.parametrize("money", [300.0, 1.2])
def test_a_process_that_is_killed_between_answers_pays_nothing_twice(tmp_path: Path, money: float) -> None:
    """Killed in the first batch, while answers are asked for again, and after a cap was raised."""
    children: list[subprocess.Popen[bytes]] = []
    killed: list[int] = []
    moments = [7, 23, 45]

    def spoil_and_kill(number: int, _text: str) -> dict[str, Any] | None:
        if moments and number >= moments[0]:
            killed.append(moments.pop(0))
            children[-1].send_signal(signal.SIGKILL)
        return completion("") if number % 3 == 2 else None

    writer = Writer(spoil_and_kill)
    codes: list[int] = []
    with serving(ChatServer(writer, key="")) as server:
        for cap in (money, money, money, *[300.0] * 4):
            children.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(tmp_path), server.url, str(cap)],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))},
                    stderr=subprocess.DEVNULL,
                )
            )
            codes.append(children[-1].wait(timeout=120))
            if codes[-1] == 0:
                break
    assert codes[-1] == 0
    assert len(killed) == 3
    asked_again = len(writer.prompts) - len(set(writer.prompts))
    assert asked_again <= 2 * len(killed)  # those in flight when the process died
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        answers = [json.loads(value) for value in journal.items("generate/").values()]
    finally:
        journal.close()
    assert len(answers) == len(set(writer.prompts))
    assert int((tmp_path / "texts").read_text(encoding="utf-8")) >= 30


@pytest.mark.slow
@pytest.mark.parametrize(("model", "style"), list(product(("base", "t5"), ("chat", "completion"))))
def test_local_base_model_and_t5_write_a_corpus_without_their_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, style: str
) -> None:
    """What they write is noise, and stands in the corpus as any text would; none of it is their prompt."""
    # Noise is cut more often than not.
    monkeypatch.setattr(author, "FEWEST_WRITTEN", 0.0)
    monkeypatch.setattr(author, "FEWEST_JUDGED", 1_000)
    if model == "t5":
        save_tiny_t5(tmp_path / model, ascii_only=True, seed=3)
    else:
        save_tiny_llama(tmp_path / model, chat=False, positions=1024, ascii_only=True)
    make_task(tmp_path, samples=24)
    path = tmp_path / "task.toml"
    text = path.read_text(encoding="utf-8").partition("[[generators]]")[0].rstrip()
    table = (
        f'[[generators]]\nname = "local"\nkind = "transformers"\npath = "{model}"\ndevice = "cpu"\nstyle = "{style}"'
    )
    path.write_text(f"{text}\n{table}\nmax_new_tokens = 24\n", encoding="utf-8")
    loaded = tasks.load(path, ["method.rounds=2"])
    (use,) = delivered(loaded, tmp_path / "out", seed=3, insecure_noise_seed=None).report.usage
    assert use.count.orders == 24
    assert use.count.kept == len(texts(tmp_path / "out")) > 0
    assert use.count.completion_tokens > 0
    assert not any("Category:" in text or "<text>" in text for text in texts(tmp_path / "out"))
