"""Classifiers by DP-SGD and by ghost clipping: same steps, no record beyond the norm, scores stand in a table."""

import numpy as np
import pytest

from tests.doubles.tasks import LABELS, make_replay_task, make_task
from tests.doubles.tiny_bert import write_bert
from tests.doubles.topic_writer import topic_writer
from undersong.comparison import grid as comparison
from undersong.comparison import table as compare_table
from undersong.comparison.cell import Bench, Cell, Variant
from undersong.run.options import ComparisonOptions
from undersong_common.errors import ConfigurationError
from undersong_dpsgd import dp_classifier
from undersong_server.generators.interface import GeneratorSettings, PromptFormat
from undersong_server.progress import Silent
from undersong_server.runs import task as tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("dpsgd_installed")]


def embed(texts):
    """The first word decides the direction."""
    found = np.full((len(texts), 4), 0.1, dtype=np.float32)
    found[np.arange(len(texts)), [ord(text[0]) % 4 for text in texts]] = 1.0
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture
def task_file(tmp_path):
    rows = [{"text": f"{label} note {n}", "label": label} for n in range(60) for label in "ab"]
    return make_replay_task(tmp_path, rows, privacy={"epsilon": 4.0, "delta": 1e-3})


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    words = ["card", "lost", "a", "pin", "was", "declined", "at", "the", "till", "b", "c"]
    return write_bert(tmp_path_factory.mktemp("classifier") / "model", words)


def trained(kind, bert, layers, *, clip=0.5):
    """A trainer of a fresh model, and five records as it reads them."""
    import torch

    from undersong_dpsgd.dp_classifier_training import Labelled, TunedEncoder, on_embeddings

    torch.manual_seed(3)
    model = TunedEncoder(bert, 2, layers=layers, tokens=16) if layers else on_embeddings(embed, 2)
    torch.nn.init.normal_(model.layer.weight, std=0.5)
    trainer = kind(model, clip=clip, rate=0.1, expected_batch=4.0, chunk=2, pad=0)
    texts = ["card lost", "a pin", "card was declined at the till", "b", "c c c"]
    return trainer, [Labelled(read, number % 2) for number, read in enumerate(model.read(texts))]


def summed(trainer, records):
    """The clipped gradients' sum of one step without noise, before it is divided, flat."""
    import torch

    optimiser = trainer.optimiser(0.0, torch.Generator().manual_seed(0))
    kept = {}
    optimiser.attach_step_hook(
        lambda _o: kept.update(g=torch.cat([w.grad.flatten().clone() for w in trainer._weights]))
    )
    trainer.accumulate(optimiser, records)
    return kept["g"].numpy() * 4.0


@pytest.mark.slow
@pytest.mark.parametrize("layers", [0, 1])
def test_ghost_and_plain_clipping_give_the_same_bounded_gradient_sum(bert, layers):
    from undersong_dpsgd.dp_classifier_training import ClassifierTrainer, GhostTrainer

    sums = {}
    for kind in (ClassifierTrainer, GhostTrainer):
        trainer, records = trained(kind, bert, layers)
        trainer.check(records[:2])
        sums[kind] = summed(trainer, records)
        trainer, records = trained(kind, bert, layers)
        assert 0 < np.linalg.norm(sums[kind] - summed(trainer, records[:-1])) <= 0.5 * (1 + 1e-5)
    one, other = sums.values()
    assert np.linalg.norm(one - other) <= 1e-4 * np.linalg.norm(one)
    assert 0 < np.linalg.norm(one) <= 5 * 0.5


@pytest.mark.slow
def test_ghost_clipping_step_without_drawn_records_sums_to_zero(bert):
    from undersong_dpsgd.dp_classifier_training import GhostTrainer

    trainer, _ = trained(GhostTrainer, bert, 0)
    assert not summed(trainer, []).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp-sgd-classifier", "ghost-classifier"])
def test_dp_classifier_comparison_cell_has_scores_but_no_corpus(task_file, tmp_path, embedded_by, name):
    embedded_by(embed)
    bench = Bench(task_file, (), tmp_path / "test.jsonl", 10, insecure_noise_seed=1)
    grid = compare_table.ComparisonGrid.of(
        ComparisonOptions(
            methods=[f"{name}:epochs=5+batch=60+rate=0.05"], epsilons=[4.0], parties=[], records=[], seeds=[0]
        )
    )
    (value,) = comparison.compare(bench, grid, tmp_path / "out", jobs=1, progress=Silent()).values()
    assert value["accuracy"] > 0.9
    assert value["weighted_recall"] == pytest.approx(value["accuracy"])
    assert value["epsilon_spent"] == pytest.approx(4.0, rel=1e-2)
    assert value["rows"] is None
    assert value["training"]["noise_multiplier"] > 0.5
    document = compare_table.markdown("t", grid, compare_table.summary(grid, {grid.cells()[0]: value}), "c")
    assert "| - | - | reference |" in document
    assert "centralised" in document


@pytest.mark.slow
@pytest.mark.parametrize("name", ["da-dp-sgd", "da-ghost"])
def test_dp_sgd_classifier_selects_texts_that_are_like_the_records(tmp_path, embedded_by, name):
    """Labels in the noisy shares of the records (2 : 1); half of the pool begins as the records do, half does not."""
    embedded_by(embed)
    rows = [{"text": f"a note {n}", "label": "b" if n % 3 == 0 else "a"} for n in range(240)]
    pool = [{"text": f"{first} text {n}", "label": label} for n in range(40) for first in "ac" for label in "ab"]
    task = make_replay_task(tmp_path, rows, generators={"pool": pool}, privacy={"epsilon": 4.0, "delta": 1e-3})
    bench = Bench(task, (), tmp_path / "test.jsonl", 10, insecure_noise_seed=1)
    variant = Variant.parse(f"{name}:samples=60+kept=20+epochs=5+batch=60+rate=0.05+tutor_epsilon=1")
    made = bench.made(Cell(variant, 4.0, None, None, 0))
    assert len(made.corpus) == 20
    assert sum(text.startswith("a") for text in made.corpus.texts) >= 18  # of a pool in which half of them do
    assert 11 <= made.corpus.labels.count("a") <= 16
    assert 3.9 < made.facts["epsilon_spent"] <= 4.0
    assert made.facts["generator_calls"] == 60
    with pytest.raises(ConfigurationError):
        Variant.parse(f"{name}:tutor_epsilon=4").training.check(tasks.load(task))


@pytest.mark.slow
def test_da_ghost_preset_sends_the_same_prompts_as_the_discriminator(tmp_path, embedded_by, monkeypatch):
    """Song et al. 2024, section 5, "for a fair comparison": one prompt a label, the same as discriminator's preset."""
    embedded_by(lambda texts: embed([text.lower() for text in texts]))
    asked = topic_writer(monkeypatch)
    monkeypatch.setattr(GeneratorSettings, "prompt_format", lambda *_: PromptFormat())  # as of a language model
    path = make_task(tmp_path, parties=1, records=60)
    bench = Bench(path, ("federation.parties=1",), tmp_path / "test.jsonl", 10, insecure_noise_seed=1)
    ours = "discriminator:preset=paper+discriminator=random+accounting=exact+student=linear+samples=24"
    prompts = []
    for name in (f"{ours}+tutor_share=0+kept=12", "da-ghost:preset=paper+samples=24+kept=12+epochs=1"):
        asked.clear()
        bench.made(Cell(Variant.parse(name), 4.0, None, None, 0))
        prompts.append({(request.kind, request.words, request.prompt) for _, request in asked})
    assert prompts[0] == prompts[1]
    assert len(prompts[0]) == len(LABELS)
    assert all("at least 200 words" in prompt for _, _, prompt in prompts[0])
    theirs = Variant.parse("da-dp-sgd:preset=paper+kept=6000").training
    assert (theirs.samples, theirs.kept, theirs.words, theirs.tutor_epsilon) == (560_000, 6000, 400, 0.4)


def test_dp_sgd_classifier_options_that_cannot_run_are_refused(task_file):
    task = tasks.load(task_file, ["privacy.unit=party"])
    options = Variant.parse("ghost-classifier").training
    assert isinstance(options, dp_classifier.GhostOptions)
    with pytest.raises(ConfigurationError, match="unit"):
        options.check(task)
    with pytest.raises(ConfigurationError, match="epoch"):
        Variant.parse("dp-sgd-classifier:epoch=3")
    with pytest.raises(ConfigurationError, match="config"):
        dp_classifier.Options(layers=1, model=str(task_file.parent)).check(tasks.load(task_file))
