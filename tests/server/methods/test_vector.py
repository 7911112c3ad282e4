"""Vector: what it refuses to plan, what it estimates from noisy sums, and a run with a tiny model that is steered."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.doubles.delivery import delivered_by
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.tiny_llama import SENTENCES, save_tiny_llama
from undersong.run.simulation import Delivered
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_common.models.hidden_states import prepare
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import Privacy, Quorum
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.transformers import TransformersGenerator, TransformersSettings
from undersong_server.methods import vector
from undersong_server.methods.interface import Setting
from undersong_server.methods.vector import Options
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

SIZE = 8
METHOD = ["method.name=vector", f"method.embedding_size={SIZE}"]


def make_setting(epsilon: float, records: int, steerable: str = "model") -> Setting:
    promise, quorum = Privacy(epsilon, 1e-5), Quorum(1, 1, 0, 0)
    return Setting(
        LABELS,
        ("one",),
        privacy=promise,
        quorum=quorum,
        embedder="model",
        expected_records=records,
        steerable=(steerable,),
    )


@pytest.mark.parametrize("steerable", ["", "another model"])
def test_only_the_embedder_s_own_model_can_be_steered(steerable: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        vector.plan(Options(), make_setting(4.0, 300, steerable))
    assert refused.value.code == "not-steerable"


def test_vector_method_refuses_a_generator_that_cannot_be_steered(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan_run(tasks.load(make_task(tmp_path), ["method.name=vector"]))
    assert refused.value.code == "not-steerable"


def test_vector_method_refuses_more_coordinates_than_noise_allows() -> None:
    """The remedy's number of coordinates is planned, one more is not; notes say the part that is noise."""
    with pytest.raises(ConfigurationError) as refused:
        vector.plan(Options(embedding_size=400), make_setting(0.2, 300))
    assert refused.value.code == "noise-drowns"
    most = int(refused.value.remedy.split("at most ")[1].split(" ")[0])
    assert len(vector.plan(Options(embedding_size=most), make_setting(0.2, 300))) == 2
    with pytest.raises(ConfigurationError):
        vector.plan(Options(embedding_size=most + 1), make_setting(0.2, 300))
    (few,), (many,) = (vector.notes(Options(embedding_size=size), make_setting(4.0, 300)) for size in (4, 400))
    assert float(few.split("is ")[1].split(" ")[0]) < float(many.split("is ")[1].split(" ")[0])


def test_shrunk_means_are_exact_without_noise_and_small_for_pure_noise() -> None:
    rng = np.random.default_rng(1)
    means, records = rng.normal(size=(5, SIZE)), np.array([10.0, 40.0, 40.0, 100.0, 200.0])
    assert np.allclose(vector.shrunk(means * records[:, None], records, 0.0), means)
    lengths = [
        np.linalg.norm(vector.shrunk(rng.normal(0.0, 30.0, (5, SIZE)), np.full(5, 30.0), 30.0)) for _ in range(50)
    ]
    assert np.median(lengths) < 0.5 * np.sqrt(5 * SIZE)  # without shrinking it would be the root itself


@pytest.mark.parametrize("sigma", [5.0, 20.0, 50.0])
def test_shrunk_means_are_nearer_to_the_true_means_than_noisy_ones(sigma: float) -> None:
    rng = np.random.default_rng(2)
    records = np.array([20.0, 60.0, 30.0, 30.0])
    errors = []
    for _ in range(100):
        means = rng.normal(0.0, 0.2, SIZE) + rng.normal(0.0, 0.2, (4, SIZE))
        sums = means * records[:, None] + rng.normal(0.0, sigma, means.shape)
        found = vector.shrunk(sums, records, sigma)
        errors.append([((each - means) ** 2).sum() for each in (found, sums / records[:, None])])
    ours, plain = np.mean(errors, axis=0)
    assert ours < plain


# With a model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_llama(folder / "llama", chat=False, tied=True)
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    rng = np.random.default_rng(3)
    public = [*SENTENCES, *(" ".join(rng.choice(words, 6)) for _ in range(60))]
    prepare(folder / "llama", folder / "prepared", public, layer=2, size=SIZE)
    return folder / "prepared"


def write_steered(model: Path, steering: Sequence[tuple[float, ...]]) -> list[str]:
    """Texts of one batch, each steered by its own vector; the same seeds at every call."""
    fields: dict[str, Any] = {"name": "tiny", "kind": "transformers", "path": str(model), "device": "cpu"}
    generator = TransformersGenerator(
        TransformersSettings(**fields, style="completion", max_new_tokens=16, batch_size=32), folder=Path()
    )
    requests = [
        GenerationRequest("zero_shot", "", "A note:", 50 + number, style="completion", steering=each)
        for number, each in enumerate(steering)
    ]
    found = dict(generator.answer(requests))
    return [answer.text for _, answer in sorted(found.items()) if isinstance(answer, Completion)]


@pytest.mark.slow
def test_steering_moves_texts_along_their_vector_and_leaves_other_rows(model: Path) -> None:
    """Half a batch is steered along an axis and half against it; a row without a vector stays as it was."""
    planted = (5.0, *[0.0] * (SIZE - 1))
    against = tuple(-each for each in planted)
    texts = write_steered(model, [planted, against] * 24)
    along = Embedder.load(model).encode(texts)[:, 0]
    assert along[0::2].mean() > along[1::2].mean() + 0.2
    plain = write_steered(model, [()] * 8)
    assert write_steered(model, [planted, (), *[planted] * 6])[1] == plain[1]
    assert write_steered(model, [planted] * 8) != plain


def run(model: Path, folder: Path) -> Delivered:
    return delivered_by(model, folder, METHOD, embedder=str(model), max_new_tokens=20, batch_size=4)


@pytest.mark.slow
def test_continued_vector_run_spends_its_plan_once_and_asks_nothing_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steered: list[tuple[float, ...]] = []
    batch, decoded = TransformersGenerator._answer_batch, TransformersGenerator._decode_answer

    def readable(*given: Any) -> Completion:
        """Ends the random model's answers as texts."""
        answer = decoded(*given)
        return replace(answer, text=re.sub("[^a-z ]", "", answer.text) + " it ends.", finish="")

    def stopping(
        self: Any, prompts: Any, requests: Sequence[GenerationRequest], longest: Any, **check: Any
    ) -> list[Completion]:
        if len(steered) >= 8:
            raise KeyboardInterrupt
        if not check:  # the folder's check of its batches steers nothing
            steered.extend(request.steering for request in requests)
        return batch(self, prompts, requests, longest, **check)

    monkeypatch.setattr(TransformersGenerator, "_decode_answer", readable)
    with monkeypatch.context() as stopped:
        stopped.setattr(TransformersGenerator, "_answer_batch", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path)
    done = run(model, tmp_path)
    assert {len(each) for each in steered[4:]} == {SIZE}  # after the trial
    assert len(done.report.samples) > 12
    whole = run(model, tmp_path / "whole")
    assert [each.text for each in done.report.samples] == [each.text for each in whole.report.samples]
    receipts = json.loads((done.folder / "manifest.json").read_text(encoding="utf-8"))["receipts"].values()
    planned = plan_run(tasks.load(tmp_path / "task.toml", METHOD)).plan
    assert [each.name for each in planned.sums] == ["labels", "vectors"]
    for receipt in receipts:
        charges = [each for each in json.loads(receipt["body"])["entries"] if each["kind"] == "charge"]
        events = [
            accounting.Gaussian(event["noise_multiplier"], event["sampling_rate"], event["count"])
            for charge in charges
            for event in charge["events"]
        ]
        assert len(charges) == 2
        assert accounting.epsilon(events, 1e-5) == pytest.approx(4.0, rel=0.01)
