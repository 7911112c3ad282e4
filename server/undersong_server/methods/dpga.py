"""DPGA-TextSyn (Sun et al. 2025): private metadata, then a genetic algorithm that selects by votes with suppression.

The comments in ``run`` name the paper's sections. Deviations by default: the budget is composed over the whole plan
instead of divided (4.1 to 4.3); label, length and keyword histograms are one release; the length range comes from tail
sums of a noisy histogram, since several parties cannot keep the counts of a sparse vector search to themselves;
keywords are drawn by their noisy shares instead of a softmax; votes are among the texts of a record's label and each
label has its part of the elite, as in the notebook published for labelled data; the corpus is what any vote selected.
``preset = "paper"`` does these as the paper does, the length range as one curator would. Preset and default share one
deviation: tau starts at a public figure of the first population in the embedder's own scale, because the paper's mean
over the records suppresses whole labels in a wide embedding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_protocol.limits import LARGEST_SUMS
from undersong_protocol.statistics import EmbeddingSum, LengthHistogram, MetadataHistograms, TopQVotes
from undersong_server.methods.interface import (
    Input,
    Method,
    Order,
    Plan,
    RunContext,
    Sample,
    Setting,
    SumRequest,
)
from undersong_server.methods.parts.metadata import (
    RANGE_EDGES,
    Metadata,
    keywords_by_label,
    length_edges,
    length_range,
    shares_by_label,
    shares_of_counts,
)
from undersong_server.methods.parts.metadata import keywords as keywords_of
from undersong_server.methods.parts.papers import StatedOptions
from undersong_server.methods.parts.schedules import Rates, by_round, one_value_a_round
from undersong_server.methods.parts.selection import (
    highest,
    largest_remainder,
    mean_similarity,
    median_nearest,
    places_by_label,
    select_with_suppression,
)
from undersong_server.methods.parts.shares import LabelShares, check_named, shares_beside
from undersong_server.pool import no_texts_error
from undersong_server.prompts.rendering import MASK_RATE

Part = Annotated[float, Field(gt=0)]
Proportion = Annotated[float, Field(ge=0)]

LARGEST_ERROR = 0.03  # standard error up to which the private mean similarity is used
RANGE, HISTOGRAM, VOTES = 0.2, 0.1, 0.5  # shares of epsilon, as the paper divides it
LONGEST = 1023  # words, in the exact histogram of a curator


class Options(StatedOptions):
    """Options of DPGA-TextSyn: its [method] keys.

    Attributes:
        population: texts of each population (N); or a list with the texts that each round votes on, the last of which
            is the last population's size too.
        elite, rounds, sampling: size of the elite (N_e), number of rounds (T), and the votes' Poisson rate (q).
        samples: generator calls in all, in place of ``population`` (and of ``elite``, which keeps its ratio to it).
        accounting: "joint" composes everything exactly; "paper" gives each mechanism the paper's share of epsilon.
        curator: the length range by AboveThreshold (App. B.2) and, with ``similarity`` "mean", tau from the records'
            mean similarity (3.3.2), both from exact sums, as one curator who holds all records would; for a run that
            promises no privacy.
        split: of the joint budget (mu squared), between length range, histograms, mean similarity and votes.
        length, keywords, suppression: components that ablations switch off.
        ablation: place where ``length`` and ``keywords`` switch off: "all" prompts, and their private sums; or the
            prompts of the "first" population alone, as in 5.3.
        label_shares: of the corpus: the "records"' own, as the paper has them, "half"-way between these and equal ones,
            "even", or a table with a number for each label.
        length_bins: of the length histogram.
        keywords_per_label, keyword_answers: most keywords per label, and calls per label that propose them.
        keyword_request: "label" asks label by label; "all" asks for the keywords of all labels at once, as JSON.
        keyword_shares: chances of a label's keywords: their noisy shares of its votes, or the "softmax" of these votes.
        keyword_generator: name of the generator that proposes them, with a temperature of its own, and where there are
            others writes no text; "" takes the first.
        label_votes: whether a record votes among the texts of its own label; the paper's compares it with all texts.
        elite_by_label: whether each label has its own part of the elite, by its noisy share; without labels one elite.
        similarity: tau to start at: a public number; "mean", the records' mean similarity from a private sum, as in
            3.3.2 (1); or none: the median, over the first population, of a text's cosine to its nearest other text of
            its label (of all texts where the elite is not by label).
        fallback_similarity: tau where the mean's estimate is too noisy (and under "paper", which has no such sum).
        embedding_size: coordinates of the embedding model, for that sum.
        rewrite, fill_in, cross, generate: proportions of the expansion.
        mask_rate: chance of a word to be hidden and filled in; a list has one value a round.
        strong_rewrite: rewriting changes the content too.
        mates: the texts that an elite text is crossed with: those of its "label", or all of the "elite".
        cross_keyword: whether the prompt of a crossed text has a keyword.
        corpus: the "elites", which are the texts that any vote selected, those of the last votes first, at most as many
            as the last population has; the last "population"; or the last "elite".
    """

    method: ClassVar[str] = "dpga"

    population: Annotated[int, Field(ge=2)] | tuple[Annotated[int, Field(ge=2)], ...] = 10_000
    elite: Annotated[int, Field(ge=1)] = 2_000
    rounds: Annotated[int, Field(ge=1, le=LARGEST_SUMS)] = 10
    sampling: Annotated[float, Field(gt=0, le=1)] = 0.8
    samples: Annotated[int, Field(ge=1)] | None = None
    accounting: Literal["joint", "paper"] = "joint"
    curator: bool = False
    label_shares: LabelShares = "records"
    split: tuple[Part, Part, Part, Part] = (0.05, 0.25, 0.1, 0.6)
    length: bool = True
    length_bins: Annotated[int, Field(ge=1, le=10_000)] = 100
    keywords: bool = True
    ablation: Literal["all", "first"] = "all"
    keywords_per_label: Annotated[int, Field(ge=2, le=1000)] = 50
    keyword_answers: Annotated[int, Field(ge=1, le=100)] = 2
    keyword_request: Literal["label", "all"] = "label"
    keyword_shares: Literal["shares", "softmax"] = "shares"
    keyword_generator: str = ""
    label_votes: bool = True
    elite_by_label: bool = True
    suppression: bool = True
    similarity: Annotated[float, Field(ge=-1, le=1)] | Literal["mean"] | None = None
    fallback_similarity: Annotated[float, Field(ge=-1, le=1)] = 0.3
    embedding_size: Annotated[int, Field(ge=1)] = 384
    rewrite: Proportion = 0.25
    fill_in: Proportion = 0.25
    cross: Proportion = 0.25
    generate: Proportion = 0.25
    mask_rate: Rates = MASK_RATE
    strong_rewrite: bool = False
    mates: Literal["label", "elite"] = "label"
    cross_keyword: bool = True
    corpus: Literal["elites", "population", "elite"] = "elites"

    _schedules = one_value_a_round

    @model_validator(mode="after")
    def _usable(self) -> "Options":
        if self.elite >= min(by_round(self.population, self.rounds)):
            raise ValueError("elite must be smaller than population")
        if self.samples is not None and isinstance(self.population, tuple):
            raise ValueError("samples stands in place of population; leave out samples, or the list")
        if not any(self.operators):
            raise ValueError("all of rewrite, fill_in, cross and generate are 0; switch one on")
        return self

    @property
    def operators(self) -> tuple[float, float, float, float]:
        return self.rewrite, self.fill_in, self.cross, self.generate

    @property
    def asks_length(self) -> bool:
        return self.length or self.ablation == "first"

    @property
    def asks_keywords(self) -> bool:
        return self.keywords or self.ablation == "first"

    @property
    def estimates_similarity(self) -> bool:
        return self.suppression and self.similarity == "mean" and (self.accounting == "joint" or self.curator)

    @property
    def expansions(self) -> int:
        """Number of times that offspring are written; a corpus of selected texts has none after the last vote."""
        return self.rounds - (self.corpus != "population")

    def proposer(self, setting: Setting) -> str:
        """Name of the generator that proposes keywords. Raises ConfigurationError if the task has no such generator."""
        if self.keyword_generator and self.keyword_generator not in setting.generators:
            raise ConfigurationError(
                f"method.keyword_generator: no generator is named {self.keyword_generator!r}",
                f"choose one of {', '.join(setting.generators)}",
            )
        return self.keyword_generator or setting.generators[0]

    def writers(self, setting: Setting) -> tuple[str, ...]:
        """Names of the generators that write texts: all but the one named for keywords, unless it is the only one."""
        other_generators = tuple(
            generator_name for generator_name in setting.generators if generator_name != self.keyword_generator
        )
        return other_generators or setting.generators

    def sizes(self, setting: Setting) -> "Sizes":
        """Population, elite and calls for keywords; with ``samples``, the largest population within so many calls.

        Raises ConfigurationError if ``samples`` does not suffice for a population of two texts.
        """
        if self.keyword_request == "all":
            request_count = 1
        else:
            request_count = max(1, len(setting.labels))
        keyword_calls = self.keyword_answers * request_count if self.asks_keywords else 0
        if self.samples is None or isinstance(self.population, tuple):
            return Sizes(by_round(self.population, self.rounds), self.elite, keyword_calls)
        calls_per_text = 1 + self.expansions * (1 - self.elite / self.population)  # calls for each text of a population
        population_size = int((self.samples - keyword_calls) / calls_per_text)
        if population_size < 2:
            raise ConfigurationError(
                f"method.samples is {self.samples}: too few calls for {keyword_calls} answers with keywords and"
                f" {self.rounds} rounds of two texts",
                f"give at least {keyword_calls + math.ceil(2 * calls_per_text)}, or fewer method.rounds",
            )
        elite_size = -(-population_size * self.elite // self.population)
        return Sizes(by_round(population_size, self.rounds), min(elite_size, population_size - 1), keyword_calls)


@dataclass(frozen=True)
class Sizes:
    """Numbers of texts in the population of each round and in its elite, and of calls that propose keywords."""

    populations: tuple[int, ...]
    elite: int
    keyword_calls: int

    def offspring(self, t: int) -> int:
        """Number of texts that are written after vote ``t``; the last population is as large as the one before it."""
        return self.populations[min(t, len(self.populations) - 1)] - self.elite


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns length range, metadata histograms and mean similarity, then one subsampled nearest vote per round."""
    label_count = len(setting.labels)
    check_named(options.label_shares, setting.labels)
    options.proposer(setting)  # raises now, not in the run, if method.keyword_generator names no generator
    metadata = _metadata_statistic(options, label_count)
    voting_labels = label_count if options.label_votes else 0
    votes = [
        TopQVotes(q=1, candidates=population_size, labels=voting_labels, furthest=False)
        for population_size in options.sizes(setting).populations
    ]
    if options.curator and (options.accounting == "joint" or math.isfinite(setting.privacy.epsilon)):
        raise ConfigurationError(
            "method.curator opens the records' lengths and their mean similarity without noise",
            'set method.accounting = "paper" and privacy.epsilon = inf in a simulation, or method.curator = false',
            code="not-private",
        )
    if options.accounting == "paper":
        return _divided(options, setting, metadata, votes)
    range_share, histogram_share, similarity_share, voting_share = options.split
    requests = []
    if options.asks_length:
        requests.append(SumRequest("length range", LengthHistogram(RANGE_EDGES), range_share))
    requests.append(SumRequest("metadata", metadata, histogram_share))
    if options.estimates_similarity:
        requests.append(SumRequest("similarity", EmbeddingSum(options.embedding_size), similarity_share))
    return requests + [
        SumRequest(f"votes/{round_number}", vote, voting_share / options.rounds, sampling_rate=options.sampling)
        for round_number, vote in enumerate(votes, start=1)
    ]


def notes(options: Options, setting: Setting) -> list[str]:
    """Returns the split of the budget for ``undersong plan``; empty if epsilon is infinite."""
    epsilon, requests = options.stated(setting.privacy).epsilon, plan(options, setting)
    if not math.isfinite(epsilon):
        return []
    if options.accounting == "paper":
        share_parts = [f"{request.epsilon:g} {request.name}" for request in requests if request.epsilon is not None]
        share_parts.append(f"{VOTES * epsilon:g} all votes together")
        return [f"Budget divided as in the paper (epsilon): {', '.join(share_parts)}."]
    total_share = sum(request.budget_share for request in requests)
    share_by_sum: dict[str, float] = {}
    for request in requests:
        sum_name = request.name.partition("/")[0]
        share_by_sum[sum_name] = share_by_sum.get(sum_name, 0.0) + request.budget_share / total_share
    share_parts = [f"{100 * share:.3g} % {sum_name}" for sum_name, share in share_by_sum.items()]
    return [f"Budget composed over the whole plan (mu squared, before subsampling): {', '.join(share_parts)}."]


def generator_calls(options: Options, setting: Setting) -> int:
    sizes = options.sizes(setting)
    offspring_count = sum(sizes.offspring(t) for t in range(1, options.expansions + 1))
    return sizes.keyword_calls + sizes.populations[0] + offspring_count


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs DPGA-TextSyn. Returns the selected texts, the last population or the last elite, by ``corpus``."""
    sizes = options.sizes(run.setting)
    if options.estimates_similarity:
        run.check_embedding_size(options.embedding_size)
    metadata = _metadata(options, run)  # the paper's sections 3.2.1 and 3.2.2
    tau = _mean_tau(options, run, metadata)  # the paper's section 3.3.2, step 1
    # Section 3.2 of the paper: the first population.
    prompt_edges, prompt_keywords = (
        metadata.edges if options.length else None,
        metadata.keywords if options.keywords else (),
    )
    first_metadata = replace(metadata, edges=prompt_edges, keywords=prompt_keywords)
    population = run.generate("round 0", 0, _fresh(options, run, first_metadata, sizes.populations[0], "round 0"))
    if not population:
        raise no_texts_error("first population")
    selected_samples: list[Sample] = []
    # Sections 3.3 (votes and selection) and 3.4 (expansion) of the paper.
    for t in range(1, options.rounds + 1):
        candidates_input, population = run.publish_samples("candidates", f"round {t}", population)
        run.record("population", t - 1, [sample.text for sample in population])
        run.state_corpus(t - 1, population)
        if tau is None:
            tau = _nearest_tau(options, run, population)
        votes = run.private_sum(f"votes/{t}", [candidates_input]).natural[: len(population)]
        elite_samples = _elite(options, run, t, population, votes, tau, metadata.labels)
        run.record("elite", t, [sample.text for sample in elite_samples])
        selected_samples = list(dict.fromkeys([*elite_samples, *selected_samples]))
        if t == options.rounds and options.corpus != "population":
            if options.corpus == "elite":
                return elite_samples
            return selected_samples[: sizes.populations[-1]]
        expansion_orders = _expansion(options, run, t, elite_samples, metadata, sizes.offspring(t))
        population = [*elite_samples, *run.generate(f"round {t}", t, expansion_orders)]
    return population


def _metadata(options: Options, run: RunContext) -> Metadata:
    """Opens the shares of labels, lengths and keywords, in one release or, with "paper" accounting, in one each."""
    label_count = len(run.setting.labels)
    sum_inputs: list[Input] = []
    edges = None
    if options.asks_length:
        range_sum = run.private_sum("length range", [])
        if options.curator:
            shortest_and_longest = find_curators_length_range(
                range_sum.natural, options.stated_epsilon, run.rng("length range")
            )
        else:
            shortest_and_longest = length_range(range_sum.natural, range_sum.sigma)
        edges = length_edges(*shortest_and_longest, options.length_bins)
        sum_inputs.append(run.publish_numbers("length_edges", edges))
    keyword_samples: list[Sample] = []
    if options.asks_keywords:
        keyword_samples = _proposed(options, run)
        keyword_embeddings = run.embeddings(keyword_samples)
        sum_inputs.append(
            run.publish_vectors("keywords", "keywords", keyword_embeddings, run.label_numbers(keyword_samples))
        )
    (label_counts, length_counts, keyword_counts), sigma = _histograms(options, run, sum_inputs)
    label_of = np.maximum(run.label_numbers(keyword_samples), 0)
    metadata = Metadata(
        records=float(label_counts.sum()),
        labels=shares_beside(options.label_shares, shares_of_counts(label_counts), run.setting.labels),
        edges=edges,
        lengths=None if edges is None else shares_of_counts(length_counts[: len(edges) - 1]),
        keywords=tuple(
            tuple(
                keyword_sample.text
                for keyword_sample, keyword_label in zip(keyword_samples, label_of, strict=True)
                if keyword_label == label
            )
            for label in range(max(1, label_count))
        ),
        keyword_shares=tuple(
            shares_by_label(
                keyword_counts[: len(keyword_samples)],
                label_of,
                max(1, label_count),
                options.keyword_shares == "softmax",
            )
        ),
        records_sigma=sigma * math.sqrt(len(label_counts)),
    )
    run.record("label shares", 0, metadata.labels.tolist())
    run.record("keyword shares", 0, [share.tolist() for share in metadata.keyword_shares])
    if metadata.edges is not None and metadata.lengths is not None:
        run.record("length shares", 0, [metadata.edges.tolist(), metadata.lengths.tolist()])
    return metadata


def _histograms(
    options: Options, run: RunContext, inputs: Sequence[Input]
) -> tuple[tuple[Float64, Float64, Float64], float]:
    """Noisy label, length and keyword counts, those that are switched off empty; and the noise of a label's count."""
    if options.accounting == "joint":
        metadata_sum = run.private_sum("metadata", inputs)
        return _metadata_statistic(options, len(run.setting.labels)).split(metadata_sum.natural), metadata_sum.sigma
    metadata_sum = run.private_sum("metadata/label", [])
    counts_by_input = {"length_edges": np.zeros(0), "keywords": np.zeros(0)}
    for sum_input in inputs:
        if sum_input.name == "length_edges":
            histogram_name = "metadata/length"
        else:
            histogram_name = "metadata/keyword"
        counts_by_input[sum_input.name] = run.private_sum(histogram_name, [sum_input]).natural
    return (metadata_sum.natural, counts_by_input["length_edges"], counts_by_input["keywords"]), metadata_sum.sigma


def _metadata_statistic(options: Options, labels: int) -> MetadataHistograms:
    bin_count = options.length_bins if options.asks_length else 0
    if options.asks_keywords:
        keyword_count = max(1, labels) * options.keywords_per_label
    else:
        keyword_count = 0
    return MetadataHistograms(labels, bin_count, keyword_count)


def _proposed(options: Options, run: RunContext) -> list[Sample]:
    """Has one generator propose keywords of subclasses for each label (3.2.2, step 1); the corpus has none of them."""
    proposer_name = options.proposer(run.setting)
    task_labels = run.setting.labels or ("",)
    asks_all_labels = options.keyword_request == "all" and len(task_labels) > 1
    asked_labels = ("",) if asks_all_labels else task_labels
    keyword_orders = [
        Order(
            proposer_name,
            "keywords_by_label" if asks_all_labels else "keywords",
            label,
            terms=task_labels if asks_all_labels else (),
            words=options.keywords_per_label,
        )
        for label in asked_labels
        for _ in range(options.keyword_answers)
    ]
    keyword_answers = run.write("keywords", 0, keyword_orders)
    answers_by_label: list[list[str]] = [[] for _ in asked_labels]
    for order_number, sample in enumerate(keyword_answers):
        if sample is not None:
            answers_by_label[order_number // options.keyword_answers].append(sample.text)
    most_keywords = options.keywords_per_label
    if asks_all_labels:
        keyword_lists = keywords_by_label(answers_by_label[0], task_labels, most_keywords)
    else:
        keyword_lists = keywords_of(answers_by_label, most_keywords)
    if not any(keyword_lists):
        raise ConfigurationError(
            "the generator proposed no keyword for any label", "set method.keywords = false, or use another generator"
        )
    run.record("keywords", 0, dict(zip(task_labels, keyword_lists, strict=True)))
    return [
        Sample(word, label, proposer_name, 0, "keyword")
        for label, label_keywords in zip(task_labels, keyword_lists, strict=True)
        for word in label_keywords
    ]


def _mean_tau(options: Options, run: RunContext, metadata: Metadata) -> float | None:
    """Returns tau as a number or by the records' mean similarity; None where the first population decides it."""
    if options.similarity != "mean":
        return options.similarity
    if not options.estimates_similarity:
        return options.fallback_similarity
    similarity_sum = run.private_sum("similarity", [])
    similarity_estimate = mean_similarity(
        similarity_sum.natural, similarity_sum.sigma, metadata.records, metadata.records_sigma
    )
    is_precise = options.curator or similarity_estimate.error <= LARGEST_ERROR
    run.record(
        "tau", 0, {"estimate": similarity_estimate.value, "error": similarity_estimate.error, "believed": is_precise}
    )
    if is_precise:
        return float(np.clip(similarity_estimate.value, -1.0, 1.0))
    return options.fallback_similarity


def _nearest_tau(options: Options, run: RunContext, population: Sequence[Sample]) -> float:
    """Returns the public tau of the first population, in the scale of its embeddings (:func:`median_nearest`)."""
    if not options.suppression:
        return 1.0
    tau = median_nearest(run.embeddings(population), _groups(options, run, population))
    run.record("tau", 0, {"median nearest": tau})
    return tau


def _fresh(options: Options, run: RunContext, metadata: Metadata, order_count: int, step: str) -> list[Order]:
    """Orders texts that have no parents: a label, a keyword and a length are drawn and stand in the prompt."""
    rng = run.rng(f"{step}: fresh")
    label_names, writer_names = run.setting.labels or ("",), options.writers(run.setting)
    return [
        Order(
            writer_names[order_number % len(writer_names)],
            "metadata",
            label_names[label],
            terms=metadata.draw_terms(int(label), rng),
            words=metadata.draw_words(rng),
        )
        for order_number, label in enumerate(metadata.draw_labels(order_count, rng))
    ]


def _groups(options: Options, run: RunContext, population: Sequence[Sample]) -> list[Int64]:
    """Positions of the texts that are selected together: those of each label, or all of them."""
    if not options.elite_by_label or not run.setting.labels:
        return [np.arange(len(population))]
    label_of = run.label_numbers(population)
    return [np.flatnonzero(label_of == label) for label in range(len(run.setting.labels))]


def _elite(
    options: Options, run: RunContext, t: int, population: Sequence[Sample], votes: Float64, tau: float, shares: Float64
) -> list[Sample]:
    """Selects the elite by votes, with suppression of texts near to a selected one if that is on (3.3.2).

    It is selected from each label's texts for themselves, or from all texts together.
    """
    elite_size = options.sizes(run.setting).elite
    positions_by_group = _groups(options, run, population)
    size_of_group = [min(elite_size, len(population))]
    if options.elite_by_label and run.setting.labels:
        size_of_group = places_by_label(
            np.array([len(group) for group in positions_by_group]), shares, elite_size, least=1
        ).tolist()
    chosen_positions: list[int] = []
    last_tau = tau
    for group_positions, group_size in zip(positions_by_group, size_of_group, strict=True):
        if not group_size:
            continue
        if options.suppression:
            embeddings = run.embeddings([population[position] for position in group_positions.tolist()])
            best_positions, raised_tau = select_with_suppression(embeddings, votes[group_positions], group_size, tau)
            last_tau = max(last_tau, raised_tau)
            chosen_positions += group_positions[best_positions].tolist()
        else:
            chosen_positions += highest(votes, group_positions, group_size).tolist()
    if options.suppression:
        run.record("tau", t, last_tau)
    return [population[position] for position in sorted(chosen_positions, key=lambda position: -votes[position])]


def _expansion(
    options: Options, run: RunContext, t: int, elite: Sequence[Sample], metadata: Metadata, offspring_count: int
) -> list[Order]:
    """Orders for the offspring: rewritten, filled in and crossed elite texts and fresh ones, in their proportions."""
    rng = run.rng(f"round {t}: expansion")
    rewrite_count, fill_in_count, crossing_count, fresh_count = largest_remainder(options.operators, offspring_count)
    rewrite_kind = "rewrite" if options.strong_rewrite else "paraphrase"
    mask_rate = by_round(options.mask_rate, options.rounds)[t - 1]
    order_kinds = [rewrite_kind] * rewrite_count + ["fill_in"] * fill_in_count + ["cross"] * crossing_count
    samples_by_label: dict[str, list[Sample]] = {}
    for sample in elite:
        samples_by_label.setdefault(sample.label if options.mates == "label" else "", []).append(sample)
    parent_positions = [
        parent_position
        for _ in range(-(-len(order_kinds) // len(elite)))
        for parent_position in rng.permutation(len(elite))
    ]
    writer_names = options.writers(run.setting)
    label_index = {label: label_number for label_number, label in enumerate(run.setting.labels)}
    orders = []
    for order_number, (kind, position) in enumerate(zip(order_kinds, parent_positions, strict=False)):
        parent = elite[int(position)]
        generator = writer_names[order_number % len(writer_names)]
        mate_samples = samples_by_label[parent.label if options.mates == "label" else ""]
        parent_texts: tuple[str, ...] = (parent.text,)
        if kind == "cross":
            possible_mates = [mate for mate in mate_samples if mate is not parent]
            if possible_mates:
                parent_texts = parent.text, possible_mates[int(rng.integers(len(possible_mates)))].text
            else:
                kind = rewrite_kind  # a label's only elite text has none to be crossed with
        # The prompt asks for the parents' mean length: without a number, models shorten texts round after round.
        word_count = None
        if options.asks_length:
            word_count = round(sum(len(text.split()) for text in parent_texts) / len(parent_texts))
        order_terms: tuple[str, ...] = ()
        if kind == "cross" and options.cross_keyword:
            order_terms = metadata.draw_terms(label_index.get(parent.label, 0), rng)
        orders.append(
            Order(
                generator,
                kind,
                parent.label,
                parents=parent_texts,
                terms=order_terms,
                words=word_count,
                mask_rate=mask_rate,
            )
        )
    return orders + _fresh(options, run, metadata, int(fresh_count), f"round {t}")


# The paper's own accounting (section 4, App. B, D.3) divides epsilon into parts that stand alone. 0.2 of epsilon is for
# two searches of the length range, 0.1 for each of three Laplace histograms, 0.5 for all votes. Several parties cannot
# run the searches; one coarse Laplace histogram takes their place (docs/dpga.md), or in a simulation a curator's
# AboveThreshold over exact lengths.


def _divided(
    options: Options, setting: Setting, metadata: MetadataHistograms, votes: Sequence[TopQVotes]
) -> list[SumRequest]:
    """Plans the private sums with the paper's parts of epsilon: each histogram of ``metadata``, then the votes."""
    stated_privacy, labels = options.stated(setting.privacy), metadata.labels
    histogram_epsilon = HISTOGRAM * stated_privacy.epsilon
    sum_requests = []
    if metadata.length_bins:
        range_request = SumRequest(
            "length range", LengthHistogram(RANGE_EDGES), law="laplace", epsilon=RANGE * stated_privacy.epsilon
        )
        if options.curator:
            range_request = SumRequest("length range", LengthHistogram(tuple(range(LONGEST + 1))), noise_multiplier=0.0)
        length_statistic = MetadataHistograms(labels, length_bins=metadata.length_bins, count_labels=False)
        sum_requests.append(range_request)
        sum_requests.append(SumRequest("metadata/length", length_statistic, law="laplace", epsilon=histogram_epsilon))
    sum_requests.append(
        SumRequest("metadata/label", MetadataHistograms(labels), law="laplace", epsilon=histogram_epsilon)
    )
    if metadata.keywords:
        keyword_statistic = MetadataHistograms(labels, keywords=metadata.keywords, count_labels=False)
        sum_requests.append(SumRequest("metadata/keyword", keyword_statistic, law="laplace", epsilon=histogram_epsilon))
    if options.estimates_similarity:
        sum_requests.append(SumRequest("similarity", EmbeddingSum(options.embedding_size), noise_multiplier=0.0))
    multiplier = sigma(stated_privacy.epsilon, stated_privacy.delta, options.rounds, options.sampling)
    return sum_requests + [
        SumRequest(f"votes/{t}", vote, sampling_rate=options.sampling, noise_multiplier=multiplier)
        for t, vote in enumerate(votes, start=1)
    ]


def find_curators_length_range(
    record_counts: Float64, epsilon: float | None, rng: np.random.Generator
) -> tuple[int, int]:
    """Finds the shortest and the longest length by two searches (3.2.1, 4.1), each with half of the range's epsilon.

    From 0 up, the first search ends at the length that no more records exceed than a noisy threshold of 0. From there
    down, the second ends at the length below which no more records lie; the paper says only that the minimum is found
    in the same way.

    Args:
        record_counts: exact records of each length, float64 [n].
        epsilon: epsilon of all mechanisms together; None adds no noise.
    """
    if epsilon is None:
        half_epsilon = math.inf
    else:
        half_epsilon = RANGE * epsilon / 2
    longest_bin = above_threshold(record_counts.sum() - np.cumsum(record_counts), half_epsilon, rng)
    # records shorter than longest - 1, longest - 2, ...
    shorter_counts = np.cumsum(record_counts)[:longest_bin][::-1] - record_counts[:longest_bin][::-1]
    shortest_bin = longest_bin - 1 - above_threshold(shorter_counts, half_epsilon, rng)
    return max(0, shortest_bin), max(longest_bin, shortest_bin, 0) + 1


def above_threshold(queries: Float64, epsilon: float, rng: np.random.Generator) -> int:
    """Returns the position of the first query whose noisy answer does not exceed a noisy threshold of 0, else the last.

    It is DPGA-TextSyn's Algorithm 1 (App. B.2): Laplace noise has the scale 2 / epsilon for the threshold and
    4 / epsilon for each answer.
    """
    threshold = rng.laplace(0.0, 2.0 / epsilon)
    end_positions = np.flatnonzero(queries + rng.laplace(0.0, 4.0 / epsilon, len(queries)) <= threshold)
    if len(end_positions):
        return int(end_positions[0])
    return max(0, len(queries) - 1)


@cache
def sigma(epsilon: float, delta: float, round_count: int, sampling_rate: float) -> float:
    """Returns the noise of one vote by the paper's section 4.2.

    It is an analytic Gaussian of sigma / sqrt(T) (Lemma B.4), amplified as one mechanism (B.5). The votes have half of
    epsilon, which is ln(1 + q (e^e - 1)), and delta, which is q d; sigma is that of (e, d).

    >>> round(sigma(1.0, 1 / (8396 * math.log(8396)), 10, 0.8), 2)
    18.37
    >>> sigma(math.inf, 1e-5, 10, 0.8)
    0.0
    """
    full_epsilon = math.log1p(math.expm1(min(VOTES * epsilon, 700.0)) / sampling_rate)
    if math.isinf(epsilon):
        return 0.0
    return accounting.calibrate(
        lambda multiplier: [accounting.Gaussian(multiplier, count=round_count)], full_epsilon, delta / sampling_rate
    )


def paper_figures(options: Options, plan: Plan) -> Mapping[str, float]:
    """The paper's sigma of a vote, the epsilon that the mechanisms spend with it, and sigma by exact accounting."""
    stated_promise = plan.privacy.epsilon, plan.privacy.delta, options.rounds, options.sampling
    vote_sigma, norm_factor = sigma(*stated_promise), plan.privacy.norm_factor
    histogram_count = 1 + options.asks_length + options.asks_keywords
    spent_epsilon, exact_sigma, joint_sigma = _exact_figures(
        *stated_promise,
        histogram_count=histogram_count,
        has_length_range=options.asks_length,
        has_curator=options.curator,
    )
    return {
        "sigma": vote_sigma * norm_factor,
        "epsilon_really_spent": spent_epsilon,
        "sigma_accounted_exactly": exact_sigma * norm_factor,
        "sigma_composed_jointly": joint_sigma * norm_factor,
    }


@cache
def _exact_figures(
    epsilon: float,
    delta: float,
    round_count: int,
    sampling_rate: float,
    *,
    histogram_count: int,
    has_length_range: bool,
    has_curator: bool,
) -> tuple[float, float, float]:
    """Returns the epsilon that the paper's mechanisms spend, and sigma of one vote by exact accounting in two ways.

    The first sigma is for votes that share half of epsilon, with a fresh subsample in each round; the second for all
    mechanisms composed together, where the paper divides epsilon among them.

    Args:
        histogram_count: Laplace histograms without that of the length range.
        has_length_range, has_curator: whether there is a length range, and whether a curator searches for its two ends.
    """
    metadata: list[accounting.Event] = [accounting.Laplace(1 / (HISTOGRAM * epsilon), histogram_count)]
    if has_length_range and has_curator:  # AboveThreshold has a proof for pure epsilon only.
        metadata.append(accounting.Pure(RANGE / 2 * epsilon, 2))
    elif has_length_range:
        metadata.append(accounting.Laplace(1 / (RANGE * epsilon)))

    def votes(noise: float) -> accounting.Gaussian:
        return accounting.Gaussian(noise, sampling_rate, round_count)

    vote_sigma = sigma(epsilon, delta, round_count, sampling_rate)
    spent_epsilon = accounting.epsilon([*metadata, votes(vote_sigma)], delta)
    separate_sigma = accounting.calibrate(lambda one: [votes(one)], VOTES * epsilon, delta)
    return spent_epsilon, separate_sigma, accounting.calibrate(lambda one: [*metadata, votes(one)], epsilon, delta)


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
    asks_first=lambda options, _setting: options.asks_length or not options.asks_keywords,
    measures_lengths=lambda _options: True,
    notes=notes,
    paper_figures=paper_figures,
)
