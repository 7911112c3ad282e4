"""Texts ordered by the records' attributes: private marginals, sampled combinations, votes within the same attributes.

Attributes are public: the label, lists of values of which the nearest by embedding is a record's, and columns beside
the text. Their noisy one-way marginals, and two-way ones where the expected number of records stands above the noise,
give the shares of all combinations by iterative proportional fitting; texts are ordered in these shares, the records
vote for the nearest among those that have their attributes, and the rest is written after the texts with the most
votes. After Chien et al. 2026 (MAPLE: private tabular metadata ground the first texts of private evolution) and Hu et
al. 2025 (ACTG-ARL);
deviations: no model reads a record or is fine-tuned, and several parties' records are counted by one masked sum.
docs/attributes.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.attributes import (
    COLUMNS,
    VALUES,
    AttributeMarginals,
    Attributes,
    AttributeVotes,
    attributes_of_texts,
)
from undersong_protocol.statistics.interface import Statistic
from undersong_protocol.wire.public import Input
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import Attribute, Method, MethodOptions, RunContext, Setting
from undersong_server.methods.parts.label_shares import LEAST_LABEL_SHARE
from undersong_server.methods.parts.marginals import joint_shares
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.methods.parts.selection import (
    highest,
    largest_remainder,
    places_by_label,
    sample_without_replacement,
)
from undersong_server.pool import Sample

MOST_COMBINATIONS = 100_000
LABEL = "label"
PAIR_SHARE = 0.5  # of the marginals' part of the budget, where pairs are asked for


class Options(MethodOptions):
    """[method] keys.

    Attributes:
        samples: texts in all; half of them are written before the vote.
        pairs: whether two-way marginals are asked for: "auto" where the expected records stand above their noise.
        marginal_share: the marginals' part of the budget; the vote has the rest.
        votes: of each record, Q.
        keep: share of the first half that stays: those with the most votes of each combination.
        examples: texts that a prompt shows, drawn from the ``shortlist`` with the most votes.
    """

    samples: Annotated[int, Field(ge=2)] = 6000
    pairs: Literal["auto", "always", "never"] = "auto"
    marginal_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    examples: Annotated[int, Field(ge=1)] = 4
    shortlist: Annotated[int, Field(ge=1)] = 8

    @property
    def first(self) -> int:
        """Texts that are written before the vote."""
        return self.samples - self.samples // 2

    def of(self, setting: Setting) -> Attributes:
        """The attributes of a run. Raises ConfigurationError for none, or for too many."""
        lists, columns = _lists(setting), _columns(setting)
        found = Attributes(
            len(setting.labels),
            tuple(len(each.values) for each in lists),
            tuple(len(each.values) + 1 for each in columns),
        )
        if not found.sizes:
            raise ConfigurationError(
                'method "attributes" has no attributes', "name the labels of the task, or add [[attributes]]"
            )
        if found.combinations > MOST_COMBINATIONS:
            raise ConfigurationError(
                f"[[attributes]] have {found.combinations} combinations, at most {MOST_COMBINATIONS} are sampled",
                "leave one out, or shorten its values",
            )
        return found


def _lists(setting: Setting) -> list[Attribute]:
    return [each for each in setting.attributes if not each.column]


def _columns(setting: Setting) -> list[Attribute]:
    return [each for each in setting.attributes if each.column]


def _names(setting: Setting) -> list[str]:
    """Names of the attributes, in the order of their sizes."""
    return [*([LABEL] if setting.labels else []), *(each.name for each in (*_lists(setting), *_columns(setting)))]


def _values(setting: Setting) -> list[tuple[str, ...]]:
    """Values of each attribute; "" is a column's missing value."""
    own = [*(each.values for each in _lists(setting)), *((*each.values, "") for each in _columns(setting))]
    return [setting.labels, *own] if setting.labels else own


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """One-way marginals, two-way ones where they stand, and one vote."""
    attributes = options.of(setting)
    one_way = AttributeMarginals(attributes.labels, attributes.lists, columns=attributes.columns)
    votes = AttributeVotes(options.first, attributes.labels, attributes.lists, options.votes, attributes.columns)
    pairs = _pairs(options, setting)
    part = options.marginal_share
    requests = [SumRequest("marginals", one_way, part * (1.0 - PAIR_SHARE if pairs else 1.0))]
    if pairs is not None:
        requests.append(SumRequest("pairs", pairs, part * PAIR_SHARE))
    return [*requests, SumRequest("votes", votes, 1.0 - part)]


def _pairs(options: Options, setting: Setting) -> AttributeMarginals | None:
    """The two-way marginals, or None where they are not asked for.

    "auto" asks where an equal share of the expected records in every cell of the largest table is at least the noise's
    standard deviation: below that the tables say less than their margins.
    """
    attributes = options.of(setting)
    if options.pairs == "never" or len(attributes.sizes) < 2:
        return None
    pairs = AttributeMarginals(attributes.labels, attributes.lists, 2, attributes.columns)
    if options.pairs == "always":
        return pairs
    cells = max(math.prod(shape) for shape in pairs.shapes)
    sigma = _sigma(pairs, options.marginal_share * PAIR_SHARE, setting)
    return pairs if setting.expected_records / cells >= sigma else None


def _sigma(statistic: Statistic, share: float, setting: Setting) -> float:
    """The noise of a sum with that share of the budget, in counts; 0 without privacy."""
    privacy = setting.privacy
    if privacy is None:
        return 0.0
    mu = accounting.gaussian_mu(privacy.epsilon, privacy.delta)
    return statistic.sensitivity.l2 * privacy.norm_factor / (mu * math.sqrt(share))


def generator_calls(options: Options, setting: Setting) -> int:
    return options.samples


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """The method. Returns the synthetic corpus."""
    attributes = options.of(run.setting)
    inputs, public = _published(run)
    # Private marginals, and the shares of all combinations that they give.
    shares = _shares(options, run, inputs)
    combinations = np.stack(np.unravel_index(np.arange(attributes.combinations), attributes.sizes), axis=1)
    # Texts in these shares.
    counts = largest_remainder(shares, options.first)
    run.generate("round 1", 0, _orders(options, run, "round 1", combinations, counts, {}))
    # Votes within the same attributes: a text has the values that its words are nearest to, as a record has, and the
    # columns with which it was ordered.
    embeddings = run.embeddings(run.pool.samples)
    columns = {
        name: [dict(sample.attributes)[name] for sample in run.pool.samples]
        for name in (each.name for each in _columns(run.setting))
    }
    found = attributes_of_texts(attributes, embeddings, run.label_numbers(run.pool.samples), columns, public)
    shown = run.publish_vectors("candidates", "round 1", embeddings, found)
    votes = run.private_sum("votes", [shown, *inputs]).natural[: len(run.pool)]
    # The texts with the most votes of each combination stay, and are the examples of the rest.
    kept, best = _chosen(options, votes, found, shares)
    run.record("kept", 1, len(kept))
    have = np.bincount(found[kept], minlength=len(shares))
    left = options.samples - options.first
    counts = largest_remainder(np.maximum(shares * (len(kept) + left) - have, 0.0), left)
    texts = {number: run.pool.texts_of(members) for number, members in best.items()}
    survivors = [run.pool.samples[position] for position in kept]
    corpus = survivors + run.generate("round 2", 1, _orders(options, run, "round 2", combinations, counts, texts))
    for name, possible in zip(_names(run.setting), _values(run.setting), strict=True):
        has = Counter(sample.label if name == LABEL else dict(sample.attributes)[name] for sample in corpus)
        written = [has[value] / max(1, len(corpus)) for value in possible]
        opened = run.records[f"shares of {name}"][-1][1]
        parts = (f"{v or 'missing'} {o:.0%} ({c:.0%})" for v, o, c in zip(possible, opened, written, strict=True))
        run.record(f"{name} in the corpus", 1, written)
        run.record("remarks", 1, f"{name}, as the private sums opened it (and in the corpus): {', '.join(parts)}")
    return corpus


def _published(run: RunContext) -> tuple[list[Input], PublicInputs]:
    """The attributes' values as inputs of a sum, and as parties get them."""
    lists, columns = _lists(run.setting), _columns(run.setting)
    texts = [part for each in columns for part in (each.name, *each.values)]
    asked = [run.publish_texts(COLUMNS, texts)] if columns else []
    if not lists:
        return asked, PublicInputs(texts={COLUMNS: texts})
    generator = run.setting.generators[0]
    named = [Sample(value, "", generator, 0, "value") for each in lists for value in each.values]
    numbers = np.repeat(np.arange(len(lists)), [len(each.values) for each in lists])
    embeddings: Float32 = run.embeddings(named)
    asked.append(run.publish_vectors(VALUES, "values", embeddings, numbers))
    return asked, PublicInputs({VALUES: LabelledEmbeddings(embeddings, numbers)}, texts={COLUMNS: texts})


def _shares(options: Options, run: RunContext, inputs: Sequence[Input]) -> Float64:
    """Shares of all combinations, float64 [product of sizes], sum 1."""
    attributes = options.of(run.setting)
    names = _names(run.setting)
    opened = run.private_sum("marginals", inputs).natural
    single = [shares_of_counts(part) for part in np.split(opened, np.cumsum(attributes.sizes)[:-1])]
    if attributes.labels:  # a label that noise emptied is still one of the task's
        floored = np.maximum(single[0], LEAST_LABEL_SHARE / attributes.labels)
        single[0] = floored / floored.sum()
    for name, share in zip(names, single, strict=True):
        run.record(f"shares of {name}", 0, share.tolist())
    pairs = _pairs(options, run.setting)
    if pairs is None:
        return joint_shares(single, {})
    opened = run.private_sum("pairs", inputs).natural
    parts = np.split(opened, np.cumsum([math.prod(shape) for shape in pairs.shapes])[:-1])
    tables = {
        (table[0], table[1]): shares_of_counts(part).reshape(shape)
        for table, shape, part in zip(pairs.tables, pairs.shapes, parts, strict=True)
    }
    return joint_shares(single, tables)


def _orders(
    options: Options,
    run: RunContext,
    step: str,
    combinations: Int64,
    counts: Int64,
    best: dict[int, list[str]],
) -> list[Order]:
    """``counts`` orders of each combination, the generators in turn; with examples of it where there are any."""
    rng = run.rng(step)
    labels, names, every = run.setting.labels, _names(run.setting), _values(run.setting)
    columns = {each.name for each in _columns(run.setting)}
    orders = []
    for turn, number in enumerate(rng.permutation(np.repeat(np.arange(len(counts)), counts))):
        chosen = [each[value] for each, value in zip(every, combinations[number], strict=True)]
        label, *own = chosen if labels else ("", *chosen)
        named = tuple(zip(names[bool(labels) :], own, strict=True))
        terms = tuple(f"{name} {value}" if name in columns else value for name, value in named if value)
        generator = run.setting.generators[turn % len(run.setting.generators)]
        good = sample_without_replacement(rng, best.get(int(number), []), options.examples)
        kind = "contrast" if good else "metadata"
        orders.append(Order(generator, kind, label, good=good, terms=terms, attributes=named))
    return orders


def _chosen(options: Options, votes: Float64, found: Int64, shares: Float64) -> tuple[list[int], dict[int, Int64]]:
    """Positions of the texts that stay, and those with the most votes of each combination."""
    members = {int(number): np.flatnonzero(found == number) for number in np.unique(found[found >= 0])}
    available = np.bincount(found[found >= 0], minlength=len(shares))
    places = places_by_label(available, shares, round(options.keep * len(found)))
    kept = [
        position for number, own in members.items() for position in highest(votes, own, int(places[number])).tolist()
    ]
    best = {number: highest(votes, own, options.shortlist) for number, own in members.items()}
    return sorted(kept), {number: own[votes[own] > 0] for number, own in best.items()}


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
    reads_attributes=True,
    asks_first=lambda _options, _setting: True,
)
