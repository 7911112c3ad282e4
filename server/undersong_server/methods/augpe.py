"""Aug-PE (Xie et al. 2024): random texts, one private nearest vote per round, chosen texts varied.

``run`` follows algorithm 1 of the paper, whose names stand in its comments. Variations are paraphrases and texts with
filled gaps. Deviations: noise is calibrated over all votes together by exact accounting; each of several generators
writes an equal part, and a text's variations go to them in turn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import publishable
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.limits import LARGEST_SUMS
from undersong_protocol.statistics import TopQVotes
from undersong_server.methods.interface import Method, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.keyphrases import VocabularyOptions, private_keyphrases
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.schedules import Counts, Rates, by_round, one_value_a_round
from undersong_server.methods.parts.selection import (
    highest,
    sample_without_replacement,
    significant_votes,
)
from undersong_server.methods.parts.shares import check_named
from undersong_server.prompts.rendering import MASK_RATE

# The functions below cast votes in two levels, for many more candidates than the records can tell apart.
# First every record votes for groups of candidates ("cells"), which are public; then for candidates of the cells that
# stand out of the noise. Two private sums share the budget, so the noise of each coordinate is sqrt(2) times that of
# one flat vote; but the sums have a coordinate for each cell and each candidate of the best cells instead of one for
# each candidate, a cell collects the votes of all its candidates, and the noise of candidates that nobody is near to is
# not drawn at all (docs/performance.md, "Many candidates").

ROUNDS = 3  # rounds of clustering over all candidates
BATCH = 4096  # candidates in a step of the clustering
UNSEEN = -np.inf  # votes of a candidate outside of the cells that stand out


@dataclass(frozen=True)
class Cells:
    """Public groups of candidates.

    Attributes:
        centres: one embedding per cell, float32 [K, d], on the public grid.
        cell_of: number of each candidate's cell, int64 [N].
    """

    centres: Float32
    cell_of: Int64


def cells_of(embeddings: Float32, cell_count: int, seed: int) -> Cells:
    """Divides public embeddings, float32 [N, d], into at most ``cell_count`` cells by k-means; no cell is empty."""
    from sklearn.cluster import MiniBatchKMeans

    cell_count = min(cell_count, len(embeddings))
    with one_library_thread():
        clustering = MiniBatchKMeans(cell_count, random_state=seed, n_init=1, max_iter=ROUNDS, batch_size=BATCH).fit(
            embeddings
        )
    nonempty_clusters, cell_of = np.unique(clustering.labels_, return_inverse=True)
    return Cells(
        publishable(clustering.cluster_centers_[nonempty_clusters].astype(np.float32)), cell_of.astype(np.int64)
    )


def plan_cell_votes(
    name: str, *, cell_count: int, within: int, q: int, label_count: int = 0, share: float = 1.0
) -> list[SumRequest]:
    """Plans the two private sums of one nearest vote: votes for cells, then for candidates of the best cells.

    Args:
        cell_count: number of cells.
        within: largest number of candidates in the second sum.
        q: votes of a record, in each sum.
        label_count: number of labels, 0 if a record votes for candidates of any label.
        share: part of the budget, which the two sums divide equally.
    """
    cell_votes = TopQVotes(q=q, candidates=cell_count, furthest=False)
    candidate_votes = TopQVotes(q=q, candidates=within, labels=label_count, furthest=False)
    return [
        SumRequest(f"{name}/cells", cell_votes, share / 2),
        SumRequest(f"{name}/within", candidate_votes, share / 2),
    ]


def outstanding_cells(votes: Float64, sigma: float) -> Int64:
    """Returns the cells with more votes than noise of deviation ``sigma`` explains, best first, int64; if none, all.

    >>> outstanding_cells(np.array([0.0, 90.0, 70.0, 1.0]), 1.0).tolist()
    [1, 2]
    """
    positions = np.arange(len(votes))
    winning_cells = significant_votes(votes, positions, sigma)
    return highest(votes, winning_cells if len(winning_cells) else positions, len(votes))


def members(cells: Cells, embeddings: Float32, cell_order: Int64, most_candidates: int) -> Int64:
    """Returns the positions of the candidates of the first cells in ``cell_order``, ascending, int64.

    They are at most ``most_candidates``; of a cell that has more than are left, those nearest to its centre are taken.
    """
    selected: list[Int64] = []
    for cell in cell_order:
        cell_members = np.flatnonzero(cells.cell_of == cell)
        if len(cell_members) > most_candidates:
            closeness = embeddings[cell_members] @ cells.centres[cell]
            cell_members = cell_members[np.argsort(-closeness, kind="stable")[:most_candidates]]
        selected.append(cell_members)
        most_candidates -= len(cell_members)
        if not most_candidates:
            break
    return np.sort(np.concatenate(selected))


def open_cell_votes(
    run: RunContext, name: str, embeddings: Float32, labels: Int64, *, cell_count: int, within: int
) -> Float64:
    """Opens the sums ``name`` (:func:`plan_cell_votes`); returns noisy nearest votes, float64 [N], in votes.

    Candidates outside the best cells get ``UNSEEN``.

    Args:
        embeddings: of the candidates, as published, float32 [N, d].
        labels: their labels, int64 [N].
        cell_count, within: as in :func:`plan_cell_votes`.
    """
    voting_cells = cells_of(embeddings, cell_count, int(run.rng(f"{name}/cells").integers(2**31)))
    no_labels = np.full(len(voting_cells.centres), -1, dtype=np.int64)
    candidates = run.publish_vectors("candidates", f"{name}/cells", voting_cells.centres, no_labels)
    cell_sums = run.private_sum(f"{name}/cells", [candidates])
    cell_order = outstanding_cells(cell_sums.natural[: len(voting_cells.centres)], cell_sums.sigma)
    seen_positions = members(voting_cells, embeddings, cell_order, within)
    candidates = run.publish_vectors("candidates", f"{name}/within", embeddings[seen_positions], labels[seen_positions])
    votes = np.full(len(embeddings), UNSEEN)
    votes[seen_positions] = run.private_sum(f"{name}/within", [candidates]).natural[: len(seen_positions)]
    return votes


VARIATIONS = ("paraphrase", "fill_in")


class Options(VocabularyOptions):
    """Options of Aug-PE: its [method] keys. Those of the vocabulary count with ``private_vocabulary`` alone.

    Attributes:
        samples: generator calls in all, so that methods compare at equal calls; or a list with the texts that each
            round writes, lookaheads apart.
        corpus: texts of a population, and so of the corpus, in place of ``samples``; or a list with the population of
            each round; or "selected", which publishes the texts that the last vote selected and writes no variations of
            them, as the published code does.
        votes: Q nearest texts of a record, which get 1, 1/2, ..., 1/2^(Q - 1); above 1 it is WASP's refinement (E.2).
        selection: "rank" keeps the best 1 / ``expansion`` of the texts and varies each expansion - 1 times; "sampling"
            draws with replacement in proportion to the votes and varies each draw once.
        lookahead: K; above 0, a text is embedded as the mean of K variations of it, which are written for this alone.
        private_vocabulary: whether the first texts' prompts hold terms of the records' noisy vocabulary: the baseline
            of DP-KPS (Nagesh et al., section 3). ``vocabulary_share`` of the budget (mu squared) pays for it, or
            ``vocabulary_epsilon`` with Laplace noise, and ``prompt_terms`` are drawn for each text, evenly and each at
            most once.
        label_shares: of the corpus: "even", or a table with a number for each label.
        class_in_prompt: whether prompts name the label; DP-KPS compares itself with prompts that do not.
        cells: above 0, every vote is in two levels: for so many public cells of the texts, then for the texts of the
            cells that stand out, ``within`` of the population at most. For populations far above what the records can
            tell apart (docs/performance.md, "Many candidates").
        mask_rate: chance of a word to be hidden and filled in; a list has one value a round, the first of which fills
            nothing.
    """

    method: ClassVar[str] = "augpe"

    samples: Counts = 6000  # type: ignore[assignment] # a schedule may stand for the number
    corpus: Counts | Literal["selected"] | None = None
    rounds: Annotated[int, Field(ge=2, le=LARGEST_SUMS)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 1
    selection: Literal["rank", "sampling"] = "rank"
    expansion: Annotated[int, Field(ge=2)] = 2
    lookahead: Annotated[int, Field(ge=0)] = 0
    private_vocabulary: bool = False
    vocabulary_share: Annotated[float, Field(gt=0, lt=1)] = 1 / 6
    vocabulary_epsilon: Annotated[float, Field(gt=0)] | None = None
    prompt_terms: Annotated[int, Field(ge=1, le=64)] = 3
    label_shares: PublicShares = "even"
    class_in_prompt: bool = True
    cells: Annotated[int, Field(ge=0)] = 0
    within: Annotated[float, Field(gt=0, lt=1)] = 0.1
    mask_rate: Rates = MASK_RATE

    _schedules = one_value_a_round

    @property
    def law(self) -> Literal["gaussian", "laplace"]:
        """Law of the vocabulary's noise."""
        if self.vocabulary_epsilon is None:
            return "gaussian"
        return "laplace"

    def seen(self, population_size: int) -> int:
        """Largest number of a population's texts that are candidates in the second sum of a vote by cells."""
        return max(1, round(self.within * population_size))

    @property
    def populations(self) -> tuple[int, ...]:
        """Number of texts in the population of each round; a vote follows each but the last.

        Without a schedule all are as large as the calls of all rounds and lookaheads within ``samples`` allow.
        """
        if isinstance(self.corpus, int | tuple):
            return by_round(self.corpus, self.rounds)
        if isinstance(self.samples, tuple):
            first_count, *later_counts = self.samples
            return (first_count, *(self._grown(sample_count) for sample_count in later_counts))
        vote_count = self.rounds - 1
        if self.selection == "sampling":
            population_size = max(1, self.samples // (1 + self.variations + vote_count * self.lookahead))
        else:
            calls_of_a_text = (
                self.expansion + self.variations * (self.expansion - 1) + vote_count * self.expansion * self.lookahead
            )
            population_size = max(1, self.samples // calls_of_a_text) * self.expansion
        return (population_size,) * self.rounds

    def _grown(self, variation_count: int) -> int:
        """Size of a population of selected texts and so many variations of them; with sampling, of these alone."""
        if self.selection == "sampling":
            return variation_count
        return max(1, variation_count // (self.expansion - 1)) * self.expansion

    def selected(self, population_size: int) -> int:
        """Number of texts that are selected for a population of this size."""
        if self.selection == "sampling":
            return population_size
        return population_size // self.expansion

    @property
    def variations(self) -> int:
        """Number of rounds of variations: one after each vote, but none after the last if its texts are published."""
        return self.rounds - 1 - (self.corpus == "selected")


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the vocabulary's sum, if it is asked for, and a nearest vote before each round of variations."""
    check_named(options.label_shares, setting.labels)
    label_count = len(setting.labels)
    for size_before, size_after in pairwise(options.populations):
        if options.selection == "rank" and options.selected(size_after) > size_before:
            raise ConfigurationError(
                f"a population of {size_after} texts needs {options.selected(size_after)} selected ones, of"
                f" {size_before} before it",
                "let method.corpus or method.samples grow by less from round to round",
            )
    voted_populations = options.populations[:-1]
    if options.cells >= min(voted_populations):
        raise ConfigurationError(
            f"method.cells is {options.cells}, and method.samples gives {min(voted_populations)} texts to a vote",
            "give fewer cells than texts, or 0 for votes in one level",
        )
    votes: list[SumRequest] = []
    for iteration, population_size in enumerate(voted_populations, start=1):
        if options.cells:
            cell_sizes = {"cell_count": options.cells, "within": options.seen(population_size)}
            votes += plan_cell_votes(f"votes/{iteration}", **cell_sizes, q=options.votes, label_count=label_count)
        else:
            vote = TopQVotes(q=options.votes, candidates=population_size, labels=label_count, furthest=False)
            votes.append(SumRequest(f"votes/{iteration}", vote))
    if not options.private_vocabulary:
        return votes
    # Each vote has the weight 1.
    vocabulary_weight = (options.rounds - 1) * options.vocabulary_share / (1.0 - options.vocabulary_share)
    if math.isfinite(setting.privacy.epsilon):
        epsilon = options.vocabulary_epsilon
    else:
        epsilon = None
    return [
        SumRequest("vocabulary", options.histogram(setting), vocabulary_weight, law=options.law, epsilon=epsilon),
        *votes,
    ]


def generator_calls(options: Options, setting: Setting) -> int:
    """Number of texts that the first population, the variations and the lookaheads of a run order."""
    population_sizes = options.populations
    kept_counts = [
        0 if options.selection == "sampling" else options.selected(next_size) for next_size in population_sizes
    ]
    variation_rounds = range(1, 1 + options.variations)
    return (
        population_sizes[0]
        + sum(population_sizes[t] - kept_counts[t] for t in variation_rounds)
        + sum(population_sizes[:-1]) * options.lookahead
    )


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs Aug-PE (algorithm 1). Returns the last population, or the texts that the last vote selected."""
    label_shares = public_shares(options.label_shares, run.setting.labels)
    population = _random_samples(options, run, label_shares)  # RANDOM_API
    for t in range(1, options.rounds):
        run.state_corpus(t - 1, population)
        label_numbers = run.label_numbers(population)
        population_embeddings = _embed_population(options, run, t, population)
        votes = _noisy_votes(options, run, t, population_embeddings, label_numbers)  # DP_NN_HISTOGRAM
        # Selection by rank or by sampling, then VARIATION_API.
        selects_by_rank = options.selection == "rank"
        selected_size = options.selected(options.populations[t])
        if selects_by_rank:
            selected_positions = by_rank(votes, label_numbers, selected_size, label_shares)
        else:
            selected_positions = by_sampling(
                votes, label_numbers, selected_size, run.rng(f"selection {t}"), label_shares
            )
        selected = [population[position] for position in selected_positions]
        if t > options.variations:
            return list(dict.fromkeys(selected))
        parents = selected * (options.expansion - 1) if selects_by_rank else selected
        offspring = _vary_parents(options, run, f"round {t + 1}", t, parents)
        population = selected + offspring if selects_by_rank else offspring
    return population


def _noisy_votes(options: Options, run: RunContext, t: int, embeddings: Float32, labels: Int64) -> Float64:
    sum_name = f"votes/{t}"
    if options.cells:
        seen_size = options.seen(options.populations[t - 1])
        return open_cell_votes(run, sum_name, embeddings, labels, cell_count=options.cells, within=seen_size)
    candidates = run.publish_vectors("candidates", f"population/{t}", embeddings, labels)
    return run.private_sum(sum_name, [candidates]).natural[: len(embeddings)]


def by_rank(votes: Float64, labels: Int64, size: int, shares: Float64 | None = None) -> Int64:
    """Positions of the ``size`` texts with the most votes, int64, ascending.

    Equally many per label, or by the labels' ``shares``, float64 [C].
    """
    present_labels = np.unique(labels)
    label_index_of_text = _label_places(size, present_labels, shares)
    selected_by_label = [
        highest(votes, np.flatnonzero(labels == label), int((label_index_of_text == label_index).sum()))
        for label_index, label in enumerate(present_labels)
    ]
    return np.sort(np.concatenate(selected_by_label))


def by_sampling(
    votes: Float64, labels: Int64, size: int, rng: np.random.Generator, shares: Float64 | None = None
) -> Int64:
    """Positions drawn with replacement in proportion to the votes, clipped at zero, int64.

    Equally many per label, or by the labels' ``shares``, float64 [C].
    """
    present_labels = np.unique(labels)
    label_index_of_text = _label_places(size, present_labels, shares)
    selected_positions = []
    for label_index, label in enumerate(present_labels):
        label_positions = np.flatnonzero(labels == label)
        vote_weights = np.maximum(votes[label_positions], 0.0)
        draw_chances = None
        if vote_weights.sum() > 0:
            draw_chances = vote_weights / vote_weights.sum()
        selected_positions.append(
            rng.choice(label_positions, size=int((label_index_of_text == label_index).sum()), p=draw_chances)
        )
    return np.concatenate(selected_positions)


def _label_places(size: int, present_labels: Int64, shares: Float64 | None) -> Int64:
    """The label of each of ``size`` texts to select, as an index into the labels ``present_labels``, int64 [size]."""
    if shares is None:
        shares_of_present = np.ones(len(present_labels))
    else:
        shares_of_present = shares[present_labels]
    return deal_labels(size, shares_of_present / shares_of_present.sum(), np.zeros(len(present_labels), dtype=np.int64))


def _random_samples(options: Options, run: RunContext, shares: Float64) -> list[Sample]:
    task_labels = run.setting.labels or ("",)
    label_of_order = deal_labels(options.populations[0], shares, np.zeros(len(task_labels), dtype=np.int64))
    generator_names = run.setting.generators
    if options.private_vocabulary:
        keyphrases = private_keyphrases(options, run, law=options.law)
    else:
        keyphrases = ()
    rng = run.rng("terms of the first texts")
    orders = [
        Order(
            generator_names[i % len(generator_names)],
            "random",
            task_labels[label],
            terms=sample_without_replacement(rng, keyphrases, options.prompt_terms),
            named=options.class_in_prompt,
        )
        for i, label in enumerate(label_of_order)
    ]
    return run.generate("round 1", 0, orders)


def _variation_orders(
    options: Options, run: RunContext, parents: Sequence[Sample], t: int, turn: int = 0
) -> list[Order]:
    """Orders of one variation of each parent after vote ``t``.

    Each ``turn`` gives a parent the next generator and the other kind of variation.
    """
    generator_names, shows_class = run.setting.generators, options.class_in_prompt
    mask_rate, turn = by_round(options.mask_rate, options.rounds)[t], t + turn
    return [
        Order(
            generator_names[(i + turn) % len(generator_names)],
            VARIATIONS[(i + turn) % 2],
            parent.label,
            parents=(parent.text,),
            named=shows_class,
            mask_rate=mask_rate,
        )
        for i, parent in enumerate(parents)
    ]


def _vary_parents(options: Options, run: RunContext, step: str, t: int, parents: Sequence[Sample]) -> list[Sample]:
    """Writes one variation of each parent; a parent whose variation was dropped stays in its place, once."""
    samples = run.write(step, t, _variation_orders(options, run, parents, t))
    run.pool.extend(sample for sample in samples if sample is not None)
    varied_texts = [sample or parent for sample, parent in zip(samples, parents, strict=True)]
    return list(dict.fromkeys(varied_texts))


def _embed_population(options: Options, run: RunContext, t: int, population: Sequence[Sample]) -> Float32:
    """Each text's embedding, or the mean of its lookahead variations' (the text's own where all were dropped)."""
    embeddings = run.embeddings(population)
    if not options.lookahead:
        return embeddings
    embedding_sums, embedding_counts = np.zeros_like(embeddings), np.zeros((len(embeddings), 1), dtype=np.float32)
    for lookahead_number in range(options.lookahead):
        samples = run.write(
            f"lookahead {t}/{lookahead_number}", t, _variation_orders(options, run, population, t, lookahead_number)
        )
        answered_numbers = [i for i, sample in enumerate(samples) if sample is not None]
        embedding_sums[answered_numbers] += run.embeddings([sample for sample in samples if sample is not None])
        embedding_counts[answered_numbers] += 1
    return np.where(embedding_counts > 0, embedding_sums / np.maximum(embedding_counts, 1), embeddings)


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
    asks_first=lambda options, _setting: options.private_vocabulary,
    hides_labels=lambda options, _setting: not options.class_in_prompt,
)
