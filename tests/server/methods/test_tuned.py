"""Tuned: what it refuses to plan, what its tuner sees, DPO on a tiny model, and a run that is killed while it tunes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.doubles import bench
from tests.doubles.delivery import delivered_by
from tests.doubles.processes import ROOT
from tests.doubles.steerable import steer_by_packaged
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.tiny_llama import SENTENCES, save_tiny_llama
from tests.doubles.topic_writer import topic_writer
from undersong.run.simulation import Delivered
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.generators.interface import Completion, GenerationRequest, Preference, PromptFormat, Tuning
from undersong_server.generators.kinds.transformers import (
    TransformersGenerator,
    TransformersSettings,
    prompt_ids,
)
from undersong_server.generators.orders import Order, Requests
from undersong_server.methods import tuned
from undersong_server.methods.interface import RunContext, Setting
from undersong_server.methods.tuned import Options
from undersong_server.prompts.rendering import Prompts, TaskWords
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

SMALL = {"samples": 8, "prompts": 4, "texts": 3, "rejected": 2, "rounds": 2, "batch": 2}
METHOD = ["method.name=tuned", *(f"method.{key}={value}" for key, value in SMALL.items())]
DECODED = TransformersGenerator._decode_answer
TUNINGS: list[Any] = []
TUNING = Tuning(rank=4, learning_rate=0.02, beta=0.5, epochs=3, batch=2, seed=1)


@pytest.mark.parametrize(("steerable", "told"), [("", ""), ("model", '{"is_encoder_decoder": true}')])
def test_only_a_local_causal_model_can_be_tuned(steerable: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(told or "{}")
    setting = Setting(LABELS, ("one",), folder=tmp_path, steerable=(steerable,))
    with pytest.raises(ConfigurationError) as refused:
        tuned.plan(Options(), setting)
    assert refused.value.code == "not-tunable"
    (tmp_path / "model" / "config.json").write_text("{}")
    causal = Setting(LABELS, ("one",), folder=tmp_path, steerable=("model",))
    planned = [
        [each.name for each in tuned.plan(Options(score=score, keep=keep), causal)]
        for score in ("similarity", "votes")
        for keep in (0.5, 1)
    ]
    voted = ["votes/1", "votes/2"]
    counted = [["embeddings", "votes/corpus"], ["embeddings"], [*voted, "votes/corpus"], voted]
    assert planned == [["labels", *each] for each in counted]
    with pytest.raises(ConfigurationError) as refused:
        tuned.plan(Options(texts=6, rejected=5, pairs=3), causal)
    assert refused.value.code == "rank-too-large"


def test_orders_with_equal_hint_numbers_have_equal_prompts() -> None:
    requests = Requests(Prompts(TaskWords(description="a note", labels=LABELS)), {"g": PromptFormat()}, seed=3)
    requests.draw_words = lambda random: random.randrange(1000)
    orders = [Order("g", "zero_shot", LABELS[0], hints=number) for number in (5, 5, 6)]
    made = [requests.make(step, orders, range(3), [1] * 3)[0] for step in ("round 1/0", "round 1/1")]
    prompts = [[each[number].prompt for number in range(3)] for each in made]
    assert prompts[0] == prompts[1]
    assert prompts[0][0] == prompts[0][1] != prompts[0][2]
    assert len({each[number].seed for each in made for number in range(3)}) == 6


@pytest.mark.slow
@pytest.mark.parametrize("score", ["similarity", "votes"])
def test_tuning_reads_only_opened_sums_and_public_texts(
    score: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same opened sums, other private records change nothing that the tuner gets; none is among it."""
    topic_writer(monkeypatch)
    tunings = steer_by_packaged(monkeypatch)
    original = bench.OpenFederation.private_sum
    kept: dict[str, NoisySum] = {}

    def opened(self: Any, name: str, inputs: Any) -> NoisySum:
        return kept.setdefault(name, original(self, name, inputs))

    monkeypatch.setattr(bench.OpenFederation, "private_sum", opened)
    told = []
    for seed, records in ((1, 60), (2, 90)):
        path = make_task(tmp_path / str(seed), parties=1, records=records)
        task = tasks.load(path, [*METHOD, f"method.score={score}", "method.embedding_size=48"])
        private = {json.loads(line)["text"] for file in task.files for line in file.read_text().splitlines()}
        _, run = bench.run_method(task, plan_run(task), seed=3)
        public = {sample.text for sample in run.pool.samples}
        for _, preferences, _ in tunings:
            assert {text for _, *texts in preferences for text in texts} <= public - private
        told.append(list(tunings))
        tunings.clear()
    assert told[0] == told[1]
    assert len(told[0]) == SMALL["rounds"]
    kept.clear()
    bench.run_method(task, plan_run(task), seed=4)
    assert tunings != told[0]  # other sums are other pairs


def test_prompts_and_texts_are_ordered_in_the_records_label_shares() -> None:
    run = SimpleNamespace(setting=SimpleNamespace(generators=("a", "b"), labels=("x", "y", "z")))
    for count in (8, 3):
        ordered = tuned._round_orders(cast(RunContext, run), np.array([0.7, 0.25, 0.05]), count)
        assert Counter(order.label for order in ordered) == ({"x": 6, "y": 2} if count == 8 else {"x": 2, "y": 1})
        assert {order.generator for order in ordered} == {"a", "b"}


def test_each_option_of_tuned_reaches_the_training_under_its_name() -> None:
    run = SimpleNamespace(rng=lambda purpose: np.random.default_rng(list(purpose.encode())))
    options = Options(rank=3, learning_rate=0.25, beta=0.75, epochs=5, batch=7)
    tunings = [tuned._tuning_of_round(options, cast(RunContext, run), number) for number in range(3)]
    seeds = [tuning.seed for tuning in tunings]
    assert tunings == [Tuning(rank=3, learning_rate=0.25, beta=0.75, epochs=5, batch=7, seed=seed) for seed in seeds]
    assert len(set(seeds)) == 3  # each round has a random number of its own


def test_tuned_uses_different_prompts_in_each_round() -> None:
    setting = SimpleNamespace(generators=("a",), labels=("x",))
    run = SimpleNamespace(setting=setting, rng=lambda purpose: np.random.default_rng(list(purpose.encode())))
    options = Options(prompts=20)
    hints_by_round = [
        {order.hints for order in tuned._prompt_orders(options, cast(RunContext, run), np.ones(1), number)}
        for number in range(2)
    ]
    assert [len(hints) for hints in hints_by_round] == [20, 20]
    assert not hints_by_round[0] & hints_by_round[1]


# With a model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "llama", chat=False, tied=True)


def make_tiny_generator(model: Path, **more: Any) -> TransformersGenerator:
    fields: dict[str, Any] = {"name": "tiny", "kind": "transformers", "path": str(model), "device": "cpu"}
    settings = TransformersSettings(**fields, style="completion", max_new_tokens=24, batch_size=8, **more)
    return TransformersGenerator(settings, folder=Path())


def note_request(seed: int = 0, stop: Sequence[str] = ('"', "\n")) -> GenerationRequest:
    return GenerationRequest("zero_shot", "", 'A note: "', seed, style="completion", stop=tuple(stop))


def ask_writer(writer: TransformersGenerator, stop: Sequence[str] = ('"', "\n")) -> list[Completion]:
    found = dict(writer.answer([note_request(seed, stop) for seed in range(6)]))
    return [answer for _, answer in sorted(found.items()) if isinstance(answer, Completion)]


@pytest.mark.slow
def test_dpo_raises_the_chosen_texts_and_its_adapter_reloads_unchanged(model: Path) -> None:
    import torch

    from undersong_server.generators import tuning

    pairs = [
        Preference(note_request(), SENTENCES[0], SENTENCES[1]),
        Preference(note_request(), SENTENCES[2], SENTENCES[3]),
    ]
    writer = make_tiny_generator(model)
    told: list[int] = []
    before = ask_writer(writer)

    def margins(of: TransformersGenerator) -> list[float]:
        """Log-probability of each chosen text above its rejected one, of sums that are computed one text at a time."""
        loaded, tokenizer, _ = of._load_model()
        found = []
        for each in pairs:
            of_each = []
            for text in (each.chosen, each.rejected):
                prompt = prompt_ids(tokenizer, each.request.prompt, chat=False)
                answer = tuning.answer_ids(tokenizer, text, each.request.stop, [])
                with torch.no_grad():
                    rows = loaded(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
                of_each.append(sum(float(rows[len(prompt) + i - 1, token]) for i, token in enumerate(answer)))
            found.append(of_each[0] - of_each[1])
        return found

    plain = margins(writer)
    files = writer.tune(pairs, TUNING, told.append)
    assert told == list(range(1, 7))
    assert all(now > then + 0.5 for now, then in zip(margins(writer), plain, strict=True))
    assert ask_writer(writer) != before
    again = make_tiny_generator(model)
    again.adapt(files)
    assert ask_writer(again) == ask_writer(writer)
    assert margins(again) == margins(writer)
    # From the same start, the same training gives the same bytes.
    assert dict(make_tiny_generator(model).tune(pairs, TUNING, told.append)) == dict(files)
    # What DPO compares is the sums above.
    loaded, tokenizer, device = again._load_model()
    prompt = prompt_ids(tokenizer, pairs[0].request.prompt, chat=False)
    both = [
        tuning.answer_ids(tokenizer, text, pairs[0].request.stop, []) for text in (pairs[0].chosen, pairs[0].rejected)
    ]
    with torch.no_grad():
        chosen, rejected = tuning.log_probabilities(loaded, tuning.Pair(prompt, *both), device)
    assert float(chosen - rejected) == pytest.approx(margins(again)[0], abs=1e-3)


@pytest.mark.slow
def test_dpo_training_copies_no_model_matrix_for_each_row(model: Path) -> None:
    """Copies of the last matrix, one a row, took 16 GB and most of a training with a vocabulary of 262 144 tokens."""
    from torch.utils._python_dispatch import TorchDispatchMode

    writer = make_tiny_generator(model)
    pairs = [Preference(note_request(), SENTENCES[0], SENTENCES[1])]
    largest: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            found = function(*given, **(named or {}))
            if function.__name__.startswith(("bmm", "clone", "_unsafe_view")):
                largest.append(max(each.numel() for each in given if hasattr(each, "numel")))
            return found

    with Sizes():
        writer.tune(pairs, TUNING, lambda _: None)
        ask_writer(writer)
    loaded, _, _ = writer._load_model()
    assert max(largest) <= loaded.get_output_embeddings().weight.numel()


@pytest.mark.slow
def test_local_answer_ends_at_the_stop_of_its_request(model: Path) -> None:
    """Whatever else is in its batch, and as if it had been cut afterwards."""
    writer = make_tiny_generator(model)
    found, whole = ask_writer(writer, stop=("e",)), ask_writer(writer, stop=())
    ended = 0
    for number in range(6):
        text, free = found[number].text, whole[number].text
        if "e" in free.lstrip():
            ended += 1
            assert free.startswith(text)
            assert text.lstrip().count("e") >= 1
            assert found[number].finish == ""
            assert found[number].completion_tokens <= whole[number].completion_tokens
        else:
            assert found[number] == whole[number]
    assert ended > 2


def readable(*given: Any) -> Completion:
    """Ends the random model's answers as texts."""
    answer = DECODED(*given)
    return replace(answer, text=re.sub("[^a-z ]", "", answer.text) + " it ends.", finish="")


def killed(optimise: Any, handle: Any, pairs: Any, settings: Tuning, device: Any, told: Callable[[int], None]) -> None:
    """Tunes, and kills this process at the second pair of its second tuning."""
    TUNINGS.append(pairs)

    def told_and_killed(done: int) -> None:
        if len(TUNINGS) == 2 and done == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        told(done)

    optimise(handle, pairs, settings, device, told_and_killed)


def counted(optimise: Any, *given: Any) -> None:
    """Tunes, and is counted."""
    TUNINGS.append(given)
    optimise(*given)


def run_until_killed(model: str, folder: str) -> None:
    from undersong_server.generators import tuning

    TransformersGenerator._decode_answer = readable  # type: ignore[assignment, method-assign]
    tuning.optimise = partial(killed, tuning.optimise)
    run(Path(model), Path(folder))


def run(model: Path, folder: Path) -> Delivered:
    return delivered_by(model, folder, METHOD, max_new_tokens=16, batch_size=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_run_killed_during_tuning_continues_and_publishes_its_adapter(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the second tuning: the first is not done again, and corpus and weights are those of a whole run."""
    from undersong_server.generators import tuning

    ran = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as t, sys; t.run_until_killed(*sys.argv[1:])", str(model), tmp_path],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    monkeypatch.setattr(TransformersGenerator, "_decode_answer", readable)
    monkeypatch.setattr(tuning, "optimise", partial(counted, tuning.optimise))
    TUNINGS.clear()
    run(model, tmp_path)
    assert len(TUNINGS) == 1
    whole = tmp_path / "whole"
    whole.mkdir()
    run(model, whole)
    assert len(TUNINGS) == 3
    published = {}
    for name, folder in (("killed", tmp_path), ("whole", whole)):
        out = folder / "out"
        published[name] = [(out / file).read_bytes() for file in ("synthetic.jsonl", "adapters.zip")]
    assert published["killed"] == published["whole"]
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert "adapters.zip" in manifest["files"]
    assert list(manifest["sums"]) == ["labels", "embeddings", "votes/corpus"]
    assert "adapters.zip" in (out / "README.md").read_text(encoding="utf-8")
    assert len(published["whole"][0].splitlines()) == round(0.5 * SMALL["samples"])
    with zipfile.ZipFile(out / "adapters.zip") as archive:
        archive.extractall(tmp_path / "adapters")
    # peft reads what was published
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model)
    changed = PeftModel.from_pretrained(plain, str(tmp_path / "adapters" / "tiny"))
    weights = [each for name, each in changed.named_parameters() if "lora_B" in name]
    assert weights
    assert any(np.abs(each.detach().numpy()).max() > 0 for each in weights)
