"""DP-SGD as a reference point: what it refuses, what it charges, and that no record moves a step by more than that."""

import json
import math

import numpy as np
import pytest

from tests.doubles.pace import slow_but
from tests.doubles.tasks import make_replay_task
from tests.doubles.tiny_llama import save_tiny_llama
from undersong.comparison import references
from undersong.comparison import table as compare_table
from undersong.comparison.cell import Bench, Variant
from undersong.comparison.table import ComparisonGrid
from undersong.run.options import ComparisonOptions
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_common.text.table import Table
from undersong_dpsgd import dpsgd
from undersong_dpsgd.dpsgd_training import Example, Schedule, Trainer
from undersong_server.runs import task as tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("dpsgd_installed")]

WORDS = ["my", "card", "was", "declined", "at", "the", "till", "and", "left", "knee", "hurts", "since", "this", "day"]


@pytest.fixture
def task_file(tmp_path):
    rows = [{"text": f"{WORDS[n % len(WORDS)]} {label} {n}", "label": label} for n in range(6) for label in "ab"]
    return make_replay_task(tmp_path, rows)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("dpsgd") / "model", chat=False)


def llama_model(llama):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(llama)


def gpt2(**options):
    """Tied embeddings, learned positions, transposed layers and dropout: what Opacus finds hardest here."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=32, **options))


def examples(count, vocabulary=60, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 12, count)
    return [Example(tuple(int(n) for n in rng.integers(5, vocabulary, length)), 2) for length in lengths]


def trainer(model, **changes):
    pytest.importorskip("opacus")
    return Trainer(model, **({"clip": 0.5, "rate": 1e-3, "expected_batch": 1.0, "chunk": 3, "pad": 0} | changes))


def released(training, batch, noise=0.0, seed=0):
    """The flat vector that one step hands to AdamW."""
    import torch

    caught = []
    optimiser = training.optimiser(noise, torch.Generator().manual_seed(seed))
    optimiser.attach_step_hook(lambda own: caught.append(torch.cat([p.grad.flatten() for p in own.params]).clone()))
    before = [weight.detach().clone() for weight in optimiser.params]
    training.accumulate(optimiser, batch)
    with torch.no_grad():
        for weight, kept in zip(optimiser.params, before, strict=True):
            weight.copy_(kept)
    assert len(caught) == 1
    return caught[0].double()


def test_dp_sgd_variants_are_parsed_and_wrong_ones_refused(task_file, llama, tmp_path, monkeypatch):
    variant = Variant.parse("dp-lora:model=folder+epochs=5+batch=32+clip=0.5+rate=2e-3+rank=4")
    assert variant.training == dpsgd.LoraOptions(model="folder", epochs=5, batch=32, clip=0.5, rate=2e-3, rank=4)
    assert type(Variant.parse("dp-sgd").training) is dpsgd.Options
    for wrong, named in (("dp-sgd:rank=4", "rank"), ("dp-lora:epochs=0", "epochs"), ("dp-lora:batch", "batch")):
        with pytest.raises(ConfigurationError, match=named):
            Variant.parse(wrong)

    task = tasks.load(task_file)
    with pytest.raises(ConfigurationError, match="which model"):
        dpsgd.Options().check(task)
    with pytest.raises(ConfigurationError, match=r"nowhere.*config\.json"):
        dpsgd.LoraOptions(model=str(tmp_path / "nowhere")).check(task)
    users = tasks.load(task_file, ["privacy.unit=user", "data.user=text"])
    with pytest.raises(ConfigurationError, match="unit is 'user'"):
        dpsgd.Options(model=str(llama)).check(users)
    dpsgd.Options(model=str(llama)).check(task)
    monkeypatch.setattr(dpsgd, "PACKAGES", ("opacus_that_nobody_has",))
    with pytest.raises(ConfigurationError) as missing:
        dpsgd.Options(model=str(llama)).check(task)
    assert "undersong[coordinator,dpsgd]" in missing.value.remedy


def test_error_without_the_dpsgd_package_says_where_to_install_it_from(monkeypatch):
    monkeypatch.setattr(references.plugins, "installed", lambda _kind: ())
    with pytest.raises(ConfigurationError) as missing:
        Variant.parse("dp-lora:model=folder")
    assert "./benchmarks/dpsgd" in missing.value.remedy
    assert references.parse("wasp:rounds=3") is None


def test_dp_sgd_trains_the_only_local_model_of_the_task_by_default(task_file, llama):
    generator = f'[[generators]]\nname = "two"\nkind = "transformers"\npath = "{llama}"\n'
    task_file.write_text(task_file.read_text() + generator)
    assert dpsgd.trained_model_folder(tasks.load(task_file), dpsgd.Options()) == llama


@pytest.mark.slow
def test_dp_sgd_noise_schedule_spends_the_tasks_epsilon_and_no_more():
    plan = dpsgd.schedule(dpsgd.Options(batch=30, epochs=4), 100, 4.0, 1e-5)
    assert (plan.sampling_rate, plan.steps) == (0.3, 14)  # 4 epochs of 100 / 30 steps
    assert plan.events == [accounting.Gaussian(plan.noise_multiplier, 0.3, 14)]
    assert 3.99 < accounting.epsilon(plan.events, 1e-5) <= 4.0
    everyone = dpsgd.schedule(dpsgd.Options(batch=300, epochs=2), 100, 4.0, 1e-5)
    assert (everyone.sampling_rate, everyone.steps) == (1.0, 2)
    assert everyone.noise_multiplier == pytest.approx(1.08116 * math.sqrt(2), rel=1e-4)


def test_dp_sgd_cells_ignore_the_parties_and_are_marked_centralised():
    shape = ComparisonGrid.of(
        ComparisonOptions(
            methods=["dp-lora", "mixture"], epsilons=[1.0, 4.0], parties=[1, 10], records=[6], seeds=[0, 1]
        )
    )
    cells = [cell for cell in shape.cells() if cell.variant.training is not None]
    assert [(cell.epsilon, cell.parties, cell.seed) for cell in cells] == [
        (1.0, None, 0), (4.0, None, 0), (1.0, None, 1), (4.0, None, 1)
    ]  # fmt: skip
    assert "dp-lora: a centralised reference" in compare_table.explanation(shape, compare_table.ACCURACY)
    without = ComparisonGrid.of(ComparisonOptions(methods=["wasp"], epsilons=[1.0], parties=[], records=[], seeds=[0]))
    assert "centralised" not in compare_table.explanation(without, compare_table.ACCURACY)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dp-lora", "dp-sgd"])
def test_dp_sgd_cell_trains_writes_and_is_reproducible(task_file, llama, monkeypatch, tmp_path, kind):
    pytest.importorskip("opacus")
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    variant = f"{kind}:model={llama}+batch=4+epochs=1+tokens=8"
    shape = ComparisonGrid.of(ComparisonOptions(methods=[variant], epsilons=[4.0], parties=[], records=[10], seeds=[3]))
    bench = Bench(task_file, ("data.file_records=20",), task_file.parent / "test.jsonl", 10, insecure_noise_seed=5)
    (cell,) = shape.cells()
    value, again = bench.measure(cell), bench.measure(cell)
    assert value["generator_calls"] >= value["rows"] >= 1
    assert value["epsilon_spent"] == pytest.approx(4.0, rel=1e-3)
    assert value["training"]["steps"] == 3
    assert json.dumps(value, allow_nan=False)
    assert kind in value["method"]
    assert {**again, "seconds": 0} == {**value, "seconds": 0}


@pytest.mark.slow
def test_dp_sgd_training_learns_and_another_noise_seed_changes_the_weights(llama):
    pytest.importorskip("opacus")
    import torch

    data = examples(6, 300)

    def trained(noise, fill):
        training = trainer(llama_model(llama), rate=1e-2, clip=1.0, expected_batch=6.0)
        with torch.no_grad():
            before = float(training.losses(data).mean())
        training.fit(data, Schedule(1.0, 6, noise), entropy=lambda n: fill * n, oom_remedy="")
        with torch.no_grad():
            return before, float(training.losses(data).mean())

    before, after = trained(0.0, b"a")
    assert after < 0.8 * before
    first, same, other = (trained(1.0, fill)[1] for fill in (b"a", b"a", b"b"))
    assert first == same != other


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["llama", "gpt2", "lora"], ["lora"]))
def test_one_record_changes_a_gradient_step_by_at_most_the_clipping_norm(kind, llama):
    pytest.importorskip("opacus")
    model = llama_model(llama) if kind == "llama" else gpt2()
    if kind == "lora":
        model = dpsgd._with_adapters(model, dpsgd.LoraOptions(rank=2))
    training = trainer(model, clip=0.05)
    batch = examples(7)
    training.check(batch[:3])
    whole = released(training, batch)
    influences = [float((whole - released(training, batch[:row] + batch[row + 1 :])).norm()) for row in range(7)]
    assert max(influences) <= 0.05 * (1 + 1e-4)
    assert min(influences) > 0.04  # these gradients are longer than the norm: all of them are clipped


def test_chunks_and_padding_do_not_change_the_released_gradient():
    batch = examples(7)
    together, apart = (released(trainer(gpt2(), chunk=chunk), batch) for chunk in (7, 1))
    assert float(apart.norm()) > 0.5
    assert float((together - apart).norm()) < 1e-5


def test_dp_sgd_step_without_drawn_records_is_only_the_charged_noise():
    noise = released(trainer(gpt2(), clip=0.5, expected_batch=4.0), [], noise=3.0, seed=8)
    # 0.5 x 3 / 4 over 8 048 coordinates: a deviation off by 5 % would be six standard errors away
    assert float(noise.std()) == pytest.approx(0.375, rel=0.05)
    assert abs(float(noise.mean())) < 5 * 0.375 / math.sqrt(len(noise))


def test_dp_sgd_refuses_a_model_with_a_layer_that_mixes_records():
    pytest.importorskip("opacus")
    import torch

    class Mixing(torch.nn.Linear):
        def forward(self, rows):
            return super().forward(rows + rows.mean(0, keepdim=True))

    model = gpt2()
    head = Mixing(16, 60, bias=False)
    model.lm_head = head
    training = trainer(model)
    with pytest.raises(ConfigurationError, match="gradient of each record") as refused:
        training.check([Example((5, 6, 7, 8), 1), Example((9, 10, 11, 12), 1)])
    assert "dp-lora" in refused.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_dp_sgd_training_is_charged_the_epsilon_of_the_noise_it_added(task_file, llama, monkeypatch, epsilon):
    """Steps, sampling rate, noise and sensitivity as Opacus used them, against two other accountants."""
    pytest.importorskip("opacus")
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from opacus.accountants import RDPAccountant
    from opacus.optimizers import DPOptimizer

    used, drawn = [], []
    add_noise, accumulate = DPOptimizer.add_noise, Trainer.accumulate

    def noising(self):
        used.append((self.noise_multiplier * self.max_grad_norm, self.max_grad_norm))
        add_noise(self)

    def accumulating(self, optimiser, batch):
        drawn.append(len(batch))
        accumulate(self, optimiser, batch)

    monkeypatch.setattr(DPOptimizer, "add_noise", noising)
    monkeypatch.setattr(Trainer, "accumulate", accumulating)
    task = tasks.load(task_file, [f"privacy.epsilon={epsilon}"])
    options = dpsgd.Options(model=str(llama), batch=5, epochs=12, clip=0.3, tokens=4, samples=2)
    texts = [f"{word} {number}" for number, word in enumerate(WORDS * 2)]
    labels = ["a", "b"] * (len(texts) // 2)
    found = dpsgd.corpus(task, options, Table(tuple(texts), tuple(labels), None), seed=0, insecure_noise_seed=1)
    rate, steps = 5 / len(texts), math.ceil(12 * len(texts) / 5)
    assert len(used) == len(drawn) == steps == found.facts["training"]["steps"]
    ((deviation, clip),) = set(used)
    assert clip == 0.3
    # Poisson: mean and variance of the sample sizes, five standard errors
    spread = math.sqrt(len(texts) * rate * (1 - rate))
    assert abs(np.mean(drawn) - 5) < 5 * spread / math.sqrt(steps)
    assert np.var(drawn) == pytest.approx(spread**2, rel=5 * math.sqrt(2 / steps))

    theirs = PLDAccountant().compose(
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(deviation / clip)), steps
        )
    )
    assert theirs.get_epsilon(1e-5) == pytest.approx(epsilon, rel=5e-3)
    looser = RDPAccountant()
    looser.history = [(deviation / clip, rate, steps)]
    assert epsilon < looser.get_epsilon(1e-5) < 1.3 * epsilon
    assert found.facts["epsilon_spent"] == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "chat"),
    [(dpsgd.Options(rate=1e-2), False), (dpsgd.Options(rate=1e-2), True), (dpsgd.LoraOptions(rate=3e-2), True)],
)
def test_dp_sgd_model_writes_the_sentences_that_it_was_trained_on(task_file, tmp_path, options, chat):
    """One sentence a label, no noise: writing shows the model the prompts of its training, and the trained weights."""
    pytest.importorskip("opacus")
    save_tiny_llama(tmp_path / "model", chat=chat)
    task = tasks.load(task_file, ["privacy.epsilon=inf", "method.samples=20"])
    said = {"a": "My card was declined.", "b": "He has a sore knee."}
    labels = ["a", "b"] * 8
    given = {"model": str(tmp_path / "model"), "batch": 8, "epochs": 40, "clip": 10.0, "tokens": 24, "temperature": 0.5}
    records = Table(tuple(said[label] for label in labels), tuple(labels), None)
    found = dpsgd.corpus(task, options.model_copy(update=given), records, seed=0, insecure_noise_seed=0)
    assert found.facts["epsilon_spent"] is None
    assert found.facts["training"]["noise_multiplier"] == 0.0

    def shared(text, label):
        return len(set(text.split()) & set(said[label].split()))

    written = list(zip(found.corpus.texts, found.corpus.labels, strict=True))
    own = np.mean([shared(text, label) for text, label in written])
    other = np.mean([shared(text, "b" if label == "a" else "a") for text, label in written])
    assert own + other > 1.5  # an untrained model writes none of these words
    if not isinstance(options, dpsgd.LoraOptions):  # adapters of random weights do not learn to tell the labels apart
        assert own > 2 + 2 * other


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt2-untied", "qwen2", "neox"])
def test_usual_architectures_give_a_gradient_for_each_record(kind, llama):
    import transformers

    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    torch.manual_seed(2)
    shape = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4}
    made = {
        "llama": lambda: llama_model(llama),
        "gpt2": gpt2,
        "gpt2-untied": lambda: gpt2(tie_word_embeddings=False),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**shape, **heads, num_key_value_heads=2, tie_word_embeddings=True)
        ),
        "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**shape, **heads)),
    }
    for adapters in (False, True):
        model = made[kind]()
        trainer(dpsgd._with_adapters(model, dpsgd.LoraOptions()) if adapters else model).check(examples(3))


@pytest.mark.slow
def test_dp_sgd_refuses_a_model_that_merges_record_and_token_axes():
    """OPT does so before its feed-forward layers: Opacus then takes tokens for records, and would clip those."""
    import transformers

    pytest.importorskip("opacus")
    config = transformers.OPTConfig(
        vocab_size=60, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16
    )
    for adapters in (False, True):
        model = transformers.OPTForCausalLM(config)
        with pytest.raises(ConfigurationError, match="gradient of each record"):
            trainer(dpsgd._with_adapters(model, dpsgd.LoraOptions()) if adapters else model).check(examples(2))
