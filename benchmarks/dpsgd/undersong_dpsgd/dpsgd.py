"""DP-SGD as a reference point: a local language model fine-tuned on all private records together, then asked to write.

This is centralised. One trainer sees every record in the clear, no federation protects it, and its noise is torch's
floating-point one; what it shows is what the same (epsilon, delta) buys where such a trainer is allowed. The corpus
is written from the same zero-shot prompts, one per label, that the other methods begin with (Yue et al. 2023).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from undersong.comparison.references import Reference, ReferenceResult
from undersong_client import keys
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed
from undersong_common.models.model_files import check_language_model
from undersong_common.privacy import accounting
from undersong_common.text.table import Table
from undersong_dpsgd.dpsgd_training import Example, Schedule, Trainer
from undersong_server.generators.interface import PromptFormat
from undersong_server.generators.kinds.transformers import TransformersSettings
from undersong_server.report.usefulness import table_of
from undersong_server.runs.task import Task

if TYPE_CHECKING:
    from undersong_server.prompts.rendering import Prompts

FORMAT = PromptFormat(reads=False, style="completion")  # the model learns to continue its label's prompt with a record

PACKAGES = ("opacus", "peft")


class Training(Reference):
    """The options from which :func:`schedule` computes steps and noise of a private training."""

    batch: Annotated[int, Field(ge=1)] = 64
    epochs: Annotated[float, Field(gt=0, le=10_000)] = 3


class Options(Training):
    """``dp-sgd``: every weight of the model is trained.

    The defaults are a start, not a recommendation: what trains best depends on the model and on the number of records.

    Attributes:
        model: folder of a causal language model; "" takes that of the task's only ``transformers`` generator.
        epochs: how often a record takes part on average.
        batch: records in a step on average; from there the Poisson sampling rate, batch / records.
        clip: L2 norm that a record's gradient is cut down to.
        rate: learning rate.
        tokens: longest record that is learned and longest text that is written, in tokens.
        temperature: of the writing.
        chunk: records whose gradients are held at once; changes memory and time only.
        samples: texts that are written; None is as many as the task's method has.
        device: "auto" takes the first GPU if there is one.
    """

    name: ClassVar[str] = "dp-sgd"

    model: str = ""
    epochs: Annotated[float, Field(gt=0, le=10_000)] = 3
    batch: Annotated[int, Field(ge=1)] = 64
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    rate: Annotated[float, Field(gt=0, le=1)] = 1e-4
    tokens: Annotated[int, Field(ge=2)] = 128
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    chunk: Annotated[int, Field(ge=1)] = 8
    samples: Annotated[int, Field(ge=1)] | None = None
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"

    def check(self, task: Task) -> None:
        """Raises ConfigurationError if the unit is not the record, or packages, model or ``samples`` are missing."""
        check_training(task, self, PACKAGES)
        check_language_model(trained_model_folder(task, self), self.name)
        _samples(task, self)

    def train(
        self, task: Task, records: Table, test: Table, *, embed: Embed, seed: int, insecure_noise_seed: int | None
    ) -> ReferenceResult:
        """Trains on the records and writes a corpus (:func:`corpus`)."""
        return corpus(task, self, records, seed=seed, insecure_noise_seed=insecure_noise_seed)


class LoraOptions(Options):
    """``dp-lora``: a low-rank adapter of every linear layer is trained, the weights stay fixed (Hu et al. 2021).

    Attributes:
        rank: of the adapters, which are scaled by 2 as is usual (alpha = 2 rank).
    """

    name: ClassVar[str] = "dp-lora"

    rate: Annotated[float, Field(gt=0, le=1)] = 1e-3
    rank: Annotated[int, Field(ge=1)] = 8


def check_training(task: Task, options: Training, packages: Sequence[str]) -> None:
    """Raises ConfigurationError if the privacy unit is not the record, or if one of ``packages`` is not installed."""
    if task.privacy.unit != "sample":
        raise ConfigurationError(
            f"{options.name}: its (epsilon, delta) would be a record's, privacy.unit is {task.privacy.unit!r}",
            'compare it with unit = "sample" (--set privacy.unit=sample), or leave it out',
        )
    missing_packages = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing_packages:
        raise ConfigurationError(
            f"{options.name}: {' and '.join(missing_packages)} not installed",
            "pip install 'undersong[coordinator,dpsgd]'",
        )


def trained_model_folder(task: Task, options: Options) -> Path:
    """Returns the folder of the option ``model``, relative to the current one; else of the only local model."""
    if options.model:
        return Path(options.model).expanduser().absolute()
    local_models = [generator.path for generator in task.generators if isinstance(generator, TransformersSettings)]
    if len(local_models) != 1:
        raise ConfigurationError(
            f"{options.name}: which model is to be trained?", f"write {options.name}:model=FOLDER (a local folder)"
        )
    return task.locate(local_models[0])


def schedule(options: Training, records: int, epsilon: float, delta: float) -> Schedule:
    """Returns the training's steps and the least noise at which all steps together are (``epsilon``, ``delta``)-DP.

    Args:
        records: private records in all, as everybody may know; the sampling rate comes from it.
        epsilon: inf trains without noise (clipping stays).

    >>> schedule(Options(batch=50, epochs=2), 100, float("inf"), 1e-5)
    Schedule(sampling_rate=0.5, steps=4, noise_multiplier=0.0)
    """
    sampling_rate = min(1.0, options.batch / records)
    plan = Schedule(sampling_rate, max(1, math.ceil(options.epochs / sampling_rate)), 0.0)
    noise = accounting.calibrate(lambda scale: dataclasses.replace(plan, noise_multiplier=scale).events, epsilon, delta)
    return dataclasses.replace(plan, noise_multiplier=noise)


def begin_training(
    task: Task, options: Training, texts: Sequence[str], insecure_noise_seed: int | None
) -> tuple[int, Schedule, Callable[[int], bytes]]:
    """Returns the number of records, which counts as public, the schedule, and the source of random bytes.

    Raises ConfigurationError if there are no records.
    """
    if not texts:
        raise ConfigurationError(f"{options.name}: there are no private records", "check data.path")
    # where the task declares no number, theirs counts as public
    records = task.data.records or task.data.file_records or len(texts)
    plan = schedule(options, records, task.privacy.epsilon, task.privacy.delta)
    entropy_source = (
        keys.from_system if insecure_noise_seed is None else keys.insecure(insecure_noise_seed, options.name)
    )
    return records, plan, entropy_source("dp-sgd")


def corpus(
    task: Task,
    options: Options,
    records: Table,
    *,
    seed: int,
    insecure_noise_seed: int | None,
) -> ReferenceResult:
    """Trains on the records and writes.

    Args:
        records: every private record; no labels if the task has none.
        seed: of the adapters' first weights and of the writing; public.
        insecure_noise_seed: tests only; makes the Poisson samples and the noise reproducible.

    Raises:
        ConfigurationError: what :meth:`Options.check` finds, a model that cannot be loaded or that Opacus cannot train,
            prompts longer than its context, or no records.
        GenerationError: training ended in weights that are not finite.
    """
    import torch

    from undersong_server.generators.kinds.transformers import TransformersGenerator, load
    from undersong_server.runs.planning import build_prompts

    options.check(task)
    count, plan, entropy_source = begin_training(task, options, records.texts, insecure_noise_seed)
    labels = records.labels or ("",) * len(records)
    folder = trained_model_folder(task, options)
    prompts = build_prompts(task, alike=True)
    model, tokenizer, device = load(folder, device=options.device, dtype="float32", place=options.name)
    reader = _Reader(options, model, tokenizer, prompts, sorted({*labels, *task.task.labels}) or [""])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trainable_model = _with_adapters(model, options) if isinstance(options, LoraOptions) else model
        trainer = Trainer(
            trainable_model,
            clip=options.clip,
            rate=options.rate,
            expected_batch=plan.sampling_rate * count,
            chunk=options.chunk,
            pad=reader.pad,
        )
        trainer.check(reader.made_up(task))
        trainer.fit(
            [reader.example(text, label) for text, label in zip(records.texts, labels, strict=True)],
            plan,
            entropy=entropy_source,
            oom_remedy=f"lower chunk ({options.chunk})",
        )
    writer = TransformersGenerator(
        TransformersSettings(
            name=options.name,
            kind="transformers",
            path=str(folder),
            temperature=options.temperature,
            max_new_tokens=options.tokens,
            batch_size=32,
        ),
        folder=folder,
        loaded=(
            trainable_model.merge_and_unload() if isinstance(options, LoraOptions) else trainable_model,
            tokenizer,
            device,
        ),
    )
    return _written(task, options, writer, prompts, seed, plan)


def _written(task: Task, options: Options, writer: Any, prompts: Prompts, seed: int, plan: Schedule) -> ReferenceResult:
    """Writes as many texts as the options or the task's method order, balanced over the labels.

    The author cleans the answers and repeats failed orders as it does for other methods.
    """
    import numpy as np

    from undersong_server.database.journal import Journal
    from undersong_server.generators.author import Author
    from undersong_server.generators.orders import Order
    from undersong_server.methods.parts.selection import balanced_labels
    from undersong_server.progress import Silent

    labels = task.task.labels or ("",)
    label_numbers = balanced_labels(_samples(task, options), len(labels), np.zeros(len(labels), dtype=np.int64))
    journal = Journal(Path(":memory:"))  # at epsilon = inf these texts may be the records themselves: none on disk
    try:
        formats = {options.name: FORMAT}
        author = Author({options.name: writer}, prompts, journal, Silent(), seed=seed, formats=formats)
        samples = author.write(
            options.name, 0, [Order(options.name, "zero_shot", labels[label]) for label in label_numbers]
        )
    finally:
        journal.close()
    usage = author.usage[options.name]
    return ReferenceResult(
        table_of(sample for sample in samples if sample is not None),
        facts={"generator_calls": usage.calls, "dropped": usage.dropped, **spending(task, plan)},
    )


def spending(task: Task, plan: Schedule) -> dict[str, Any]:
    """Returns the epsilon that a training spent, and its schedule, as plain JSON values."""
    is_private = math.isfinite(task.privacy.epsilon)
    return {
        "epsilon_spent": accounting.epsilon(plan.events, task.privacy.delta) if is_private else None,
        "training": dataclasses.asdict(plan),
    }


class _Reader:
    """Records as token numbers behind their label's prompt."""

    def __init__(self, options: Options, model: Any, tokenizer: Any, prompts: Prompts, labels: Sequence[str]) -> None:
        from undersong_server.generators.kinds.transformers import end_ids, padding, prompt_ids

        self._tokenizer, self._tokens = tokenizer, options.tokens
        self._prompts = {
            label: tuple(
                prompt_ids(tokenizer, prompts.render("zero_shot", style=FORMAT.style, label=label).user, chat=False)
            )
            for label in labels
        }
        end_tokens = end_ids(tokenizer, model)
        if not end_tokens:
            raise ConfigurationError(
                f"{options.name}: neither the model nor its tokenizer names a token that ends a text",
                "name it as eos_token_id in the folder's generation_config.json",
            )
        self._end = tokenizer.eos_token_id if tokenizer.eos_token_id in end_tokens else end_tokens[0]
        self.pad = padding(tokenizer, model)
        context = getattr(model.config, "max_position_embeddings", None)
        longest = max(map(len, self._prompts.values()))
        if context is not None and longest + options.tokens > context:
            raise ConfigurationError(
                f"{options.name}: a prompt of {longest} tokens leaves no room for {options.tokens} more in {context}",
                "lower tokens, or shorten the zero_shot prompt ([prompts] folder)",
            )

    def example(self, text: str, label: str) -> Example:
        """Returns a training example: the label's prompt, then the record's first tokens and, if it fits, the end."""
        prompt = self._prompts[label]
        learned_ids = [*self._tokenizer(text, add_special_tokens=False)["input_ids"], self._end][: self._tokens]
        return Example((*prompt, *learned_ids), len(prompt))

    def made_up(self, task: Task) -> list[Example]:
        """Returns two examples of public words, of different lengths, on which the gradients are checked."""
        label = next(iter(self._prompts))
        description = task.task.description
        return [
            self.example(description, label),
            self.example(f"{description}: {', '.join(task.task.labels)} {description}", label),
        ]


def _with_adapters(model: Any, options: LoraOptions) -> Any:
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, lora_dropout=0.0, target_modules="all-linear")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft sees GPT-2's transposed layers and says so
        return get_peft_model(model, adapters)


def _samples(task: Task, options: Options) -> int:
    samples = options.samples or task.options.samples
    if samples is None:
        raise ConfigurationError(
            f"{options.name}: the task's method {task.method.name!r} has no number of samples",
            f"write {options.name}:samples=NUMBER",
        )
    return int(samples)
