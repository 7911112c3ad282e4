"""Tuned: private sums teach the model that writes (after POPri, Hou et al. 2025); docs/tuned.md has the steps.

Deviations from POPri: a text's mean similarity to the records is its product with one noisy sum of the records'
embeddings, opened once for all rounds, or votes take its place; several pairs may come of one prompt; noise is
calibrated over all sums together; prompts and texts are ordered in the label shares of a noisy histogram; and a last
vote chooses among what the tuned model writes.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_common.program.extras import named, require
from undersong_protocol.limits import LARGEST_SUMS
from undersong_protocol.statistics import EmbeddingSum, LabelHistogram
from undersong_protocol.statistics.votes import LARGEST_Q, TopQVotes
from undersong_server.methods.augpe import by_rank
from undersong_server.methods.interface import (
    Method,
    MethodOptions,
    Order,
    RunContext,
    Sample,
    Setting,
    SumRequest,
    Tuning,
)
from undersong_server.methods.parts.selection import largest_remainder
from undersong_server.methods.parts.shares import LabelShares, check_named, label_shares, wanted_shares

PART_LABELS = 1 / 9  # part of the budget, as a share of all other sums' parts; label shares need little precision


class Options(MethodOptions):
    """Options of the method ``tuned``: its [method] keys.

    Attributes:
        samples: texts that the tuned model writes at last.
        label_shares: of the corpus: half-way between equal shares and the records' ("half"), the "records"' own,
            "even", or a table with a number for each label.
        keep: share of ``samples`` that the corpus has: the texts of each label with the most votes in a last vote. 1
            keeps all texts, and there is no last vote.
        rounds: number of rounds, each of which writes texts and then tunes the model.
        score: what a prompt's texts are ranked by: "similarity" to the records' mean embedding, or "votes".
        embedding_size: coordinates of an embedding.
        prompts: prompts in a round, spread evenly over the labels; texts: texts that are written to each prompt.
        votes: texts that a record votes for (Q), in the last vote too.
        pairs: pairs from a prompt: the best text against that of rank ``rejected``, the second best against the next...
        rejected: rank of the best text's counterpart, from 1; a middle one, as POPri found best.
        rank: rank of the LoRA weights; learning_rate, beta, epochs, batch: as in ``Tuning``.
    """

    samples: Annotated[int, Field(ge=1)] = 2000
    label_shares: LabelShares = "half"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    rounds: Annotated[int, Field(ge=1, le=LARGEST_SUMS)] = 2
    score: Literal["similarity", "votes"] = "similarity"
    embedding_size: Annotated[int, Field(ge=1)] = 384
    prompts: Annotated[int, Field(ge=1)] = 200
    texts: Annotated[int, Field(ge=2)] = 10
    votes: Annotated[int, Field(ge=1, le=LARGEST_Q)] = 4
    pairs: Annotated[int, Field(ge=1)] = 1
    rejected: Annotated[int, Field(ge=2)] = 5
    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-4
    beta: Annotated[float, Field(gt=0)] = 0.1
    epochs: Annotated[int, Field(ge=1)] = 1
    batch: Annotated[int, Field(ge=1)] = 8


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the label histogram, the sum of embeddings or a vote per round (``score``), and the last vote.

    Raises ConfigurationError for a generator that cannot be tuned, and for ranks that a prompt's texts do not have.
    """
    check_named(options.label_shares, setting.labels)
    if options.rejected + options.pairs - 1 > options.texts:
        raise ConfigurationError(
            f"the last pair's rank {options.rejected + options.pairs - 1} is above method.texts = {options.texts}",
            "lower method.rejected or method.pairs, or have more texts written to a prompt",
            code="rank-too-large",
        )
    for generator_name, folder in zip(setting.generators, setting.steerable, strict=True):
        config_file = setting.folder / folder / "config.json"
        if folder and config_file.is_file():
            model_config = json.loads(config_file.read_text(encoding="utf-8"))
        else:
            model_config = {}
        if not folder or model_config.get("is_encoder_decoder"):
            raise ConfigurationError(
                f'generator {generator_name} cannot be tuned: method "tuned" trains a local causal model',
                'use generators of kind = "transformers" whose folder holds a causal model only',
                code="not-tunable",
            )
    with named():
        require("peft")
    label_count = len(setting.labels)
    sums = [SumRequest("embeddings", EmbeddingSum(options.embedding_size, label_count))]
    if options.score == "votes":
        text_count = options.prompts * options.texts
        sums = [_votes_request(options, f"votes/{t + 1}", text_count, label_count) for t in range(options.rounds)]
    if options.keep < 1:
        sums.append(_votes_request(options, "votes/corpus", options.samples, label_count))
    if label_count > 1:
        return [SumRequest("labels", LabelHistogram(label_count), PART_LABELS * len(sums)), *sums]
    return sums


def _tuning_of_round(options: Options, run: RunContext, t: int) -> Tuning:
    return Tuning(
        rank=options.rank,
        learning_rate=options.learning_rate,
        beta=options.beta,
        epochs=options.epochs,
        batch=options.batch,
        seed=int(run.rng(f"tuning {t + 1}").integers(2**31)),
    )


def _votes_request(options: Options, name: str, text_count: int, label_count: int) -> SumRequest:
    return SumRequest(name, TopQVotes(q=options.votes, candidates=text_count, labels=label_count, furthest=False))


def generator_calls(options: Options, setting: Setting) -> int:
    return options.rounds * options.prompts * options.texts + options.samples


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the corpus. The comments have the numbers of the steps in docs/tuned.md."""
    label_count, embedding_sums = len(run.setting.labels), None
    wanted_label_shares = np.ones(1)
    if label_count > 1:
        halfway_shares = label_shares(run.private_sum("labels", []))
        wanted_label_shares = wanted_shares(options.label_shares, halfway_shares, run.setting.labels)
    run.record("label shares", 0, wanted_label_shares.tolist())
    if options.score == "similarity":
        run.check_embedding_size(options.embedding_size)
        embedding_sums = run.private_sum("embeddings", []).natural.reshape(-1, options.embedding_size)
    for t in range(options.rounds):
        # 1. Several texts to each prompt, from the model as it is now.
        round_orders = [
            order for order in _prompt_orders(options, run, wanted_label_shares, t) for _ in range(options.texts)
        ]
        answered_samples = run.write(f"round {t + 1}", t, round_orders)
        samples = [sample for sample in answered_samples if sample is not None]
        run.pool.extend(samples)
        # 2. Each text's score by an opened sum of the records.
        if embedding_sums is None:
            score_of_text = _noisy_votes(run, f"votes/{t + 1}", samples)
        else:
            score_of_text = _mean_similarities(run, embedding_sums, samples)
        # 3. Preference pairs within each prompt's texts.
        preference_pairs = []
        for group_start in range(0, len(round_orders), options.texts):
            order_samples = [
                sample for sample in answered_samples[group_start : group_start + options.texts] if sample is not None
            ]
            preference_pairs += [
                (round_orders[group_start], *text_pair)
                for text_pair in pair_by_rank(order_samples, score_of_text, options.pairs, options.rejected)
            ]
        run.record("preferences", t, len(preference_pairs))
        # 4. The model is trained on the pairs.
        run.tune(f"round {t + 1}", preference_pairs, _tuning_of_round(options, run, t))
    # 5. The corpus is written by the tuned model, and the last vote chooses among its texts.
    round_orders = _round_orders(run, wanted_label_shares, options.samples)
    corpus = run.generate("corpus", options.rounds, round_orders)
    run.record(
        "remarks",
        0,
        "adapters.zip holds the LoRA weights by which the generators were tuned. They follow from opened sums and"
        " public texts alone, as the texts do, and the privacy statement holds for texts and weights together.",
    )
    if options.keep == 1 or not corpus:
        return corpus
    votes = _noisy_votes(run, "votes/corpus", corpus)
    corpus_votes = np.array([votes[sample.text] for sample in corpus])
    return [
        corpus[i] for i in by_rank(corpus_votes, run.label_numbers(corpus), max(1, round(options.keep * len(corpus))))
    ]


def pair_by_rank(group: Sequence[Sample], scores: dict[str, float], pairs: int, rejected: int) -> list[tuple[str, str]]:
    """Returns pairs (chosen, rejected) of one prompt's texts: rank i and rank i + rejected - 1, for i = 1 .. pairs.

    If texts were dropped, the last rank stands for ranks that do not exist; no text is paired with itself.

    >>> a, b, c = (Sample(text, "", "g", 0, "zero_shot") for text in "abc")
    >>> pair_by_rank([a, b, c], {"a": 0.2, "b": 4.0, "c": 1.0}, pairs=2, rejected=2)
    [('b', 'c'), ('c', 'a')]
    """
    ranked_texts = sorted((sample.text for sample in group), key=lambda text: -scores[text])
    last_rank = len(ranked_texts) - 1
    return [(ranked_texts[i], ranked_texts[min(i + rejected - 1, last_rank)]) for i in range(min(pairs, last_rank))]


def _prompt_orders(options: Options, run: RunContext, shares: Float64, t: int) -> list[Order]:
    """Returns one order for each prompt of a round, with the random number that chooses the prompt's hints."""
    hint_seeds = run.rng(f"prompts {t + 1}").integers(2**31, size=options.prompts).tolist()
    round_orders = _round_orders(run, shares, options.prompts)
    return [replace(order, hints=hint_seed) for order, hint_seed in zip(round_orders, hint_seeds, strict=True)]


def _round_orders(run: RunContext, shares: Float64, order_count: int) -> list[Order]:
    generator_names, labels = run.setting.generators, run.setting.labels or ("",)
    ordered_labels = np.repeat(np.arange(len(labels)), largest_remainder(shares, order_count)).tolist()
    return [
        Order(generator_names[order_number % len(generator_names)], "zero_shot", labels[label])
        for order_number, label in enumerate(ordered_labels)
    ]


def _mean_similarities(run: RunContext, embedding_sums: Float64, samples: Sequence[Sample]) -> dict[str, float]:
    """Product of each text's embedding with the noisy sum of the embeddings of its label's records, by text."""
    similarities = (run.embeddings(samples) * embedding_sums[np.maximum(run.label_numbers(samples), 0)]).sum(axis=1)
    return {sample.text: float(similarity) for sample, similarity in zip(samples, similarities, strict=True)}


def _noisy_votes(run: RunContext, name: str, samples: Sequence[Sample]) -> dict[str, float]:
    """Opens the sum ``name``; returns the noisy votes for each of the samples, by text."""
    candidates_input, ordered_samples = run.publish_samples("candidates", name, samples)
    vote_counts: Float64 = run.private_sum(name, [candidates_input]).natural
    return {
        sample.text: float(vote_count)
        for sample, vote_count in zip(ordered_samples, vote_counts[: len(ordered_samples)], strict=True)
    }


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    published=lambda options: options.samples,
    run=run,
    asks_first=lambda options, _setting: options.score == "similarity",
    packages=lambda _options: ("torch", "peft"),
)
