"""WASP (Zou et al. 2025): several generators, weighted by private nearest and furthest votes, prompted by contrast.

The comments in ``run`` name the lines of Algorithm 1. Deviations: each generator's noisy votes are summed and the sum
is clipped at zero before it becomes a weight (Eq. 8 normalises by a noisy total, which can be negative and then
reverses the ranking); weights sum to one. By default nearest and furthest votes are charged by their exact joint
sensitivity (Theorem D.2 charges 4 vote units, the truth at Q = 8 is 1.633), the noise is calibrated over the releases
that are made, weights shrink towards equal ones as far as that noise explains them, and a good example of a label is
never a bad one; ``preset = "paper"`` does all four as the paper does.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float64, Int64
from undersong_common.privacy import accounting
from undersong_protocol.limits import LARGEST_SUMS
from undersong_protocol.statistics.votes import TopQVotes
from undersong_server.methods.interface import Method, Order, Plan, Privacy, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.papers import PresetOptions
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.schedules import Counts, divided, one_value_a_round, total
from undersong_server.methods.parts.selection import (
    highest,
    largest_remainder,
    noise_effect,
    sample_without_replacement,
    vote_rates,
    weights_by_rates,
    weights_by_votes,
)
from undersong_server.methods.parts.shares import check_named, shrunk_rates, signal_fraction

Weighing = Callable[[Float64], Float64]  # votes for each generator's texts to its weight, float64 [K] both
PAPER_SENSITIVITY = 4.0  # vote units, Zou et al. 2025, Theorem D.2


class Options(PresetOptions):
    """Options of WASP: its [method] keys.

    Attributes:
        samples: texts in all (N); or a list with the texts of each round.
        rounds: number of rounds (T).
        votes: nearest texts, and furthest ones, that a record votes for (Q).
        examples: texts that a prompt shows, half of them bad ones; the paper has one S for this and ``shortlist``.
        shortlist: S, texts per label that examples are drawn from.
        furthest: False asks for nearest votes only, and prompts show no bad examples (Aug-PE's vote at ``votes`` 1).
        clip: where noisy votes are clipped at zero before they become weights: a generator's sum, or each candidate.
        shrink: differences of weights are shrunk as far as the noise of the votes explains them; the paper's are not.
        plm_weighting: False has every generator write the same share in every round (the paper's ablation).
        contrastive: False shows ``examples`` good examples and no bad ones (the paper's ablation); furthest votes are
            asked for all the same, so that both have the same noise.
        base_contrast: a model that only continues is shown the bad examples too.
        overlap: a good example may be a bad one; if not, bad ones are chosen among the others.
        accounting: "exact" calibrates the noise over the releases; "paper" takes sigma of Theorem D.4 and votes in the
            last round too, as the loop of Algorithm 1 does.
        delta_iter: delta of one release in Theorem D.4; None is the run's delta over T - 1, the largest it allows.
        label_shares: of the corpus: "even", or a table with a number for each label.
        prune: one more release drops the share ``prune_share`` of each label with the least votes.
    """

    method: ClassVar[str] = "wasp"

    samples: Counts = 6000  # type: ignore[assignment] # a schedule may stand for the number
    rounds: Annotated[int, Field(ge=1, le=LARGEST_SUMS)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    examples: Annotated[int, Field(ge=2, le=100)] = 8
    shortlist: Annotated[int, Field(ge=1)] = 8
    furthest: bool = True
    clip: Literal["sum", "candidate"] = "sum"
    shrink: bool = True
    plm_weighting: bool = True
    contrastive: bool = True
    base_contrast: bool = False
    overlap: bool = False
    accounting: Literal["exact", "paper"] = "exact"
    delta_iter: Annotated[float, Field(gt=0, lt=1)] | None = None
    label_shares: PublicShares = "even"
    prune: bool = False
    prune_share: Annotated[float, Field(gt=0, lt=1)] = 0.1

    _schedules = one_value_a_round

    @property
    def shows_bad(self) -> bool:
        return self.furthest and self.contrastive

    @property
    def releases(self) -> int:
        """Number of votes: one after each round; after the last only with ``prune`` or "paper" accounting."""
        if self.prune or self.accounting == "paper":
            return self.rounds
        return self.rounds - 1

    def per_round(self) -> list[int]:
        return divided(self.samples, self.rounds)

    def vote(self, candidates: int, labels: int) -> TopQVotes:
        return TopQVotes(q=self.votes, candidates=candidates, labels=labels, furthest=self.furthest)


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns one private sum of nearest and furthest votes for each of the ``releases``."""
    check_named(options.label_shares, setting.labels)
    multiplier = None
    if options.accounting == "paper":
        vote_norm = options.vote(1, 0).sensitivity.l2
        multiplier = paper_sigma(setting.privacy, options.rounds, options.delta_iter) / (
            vote_norm * setting.privacy.norm_factor
        )
    candidates = np.cumsum(options.per_round())
    return [
        SumRequest(
            f"votes/{t + 1}",
            options.vote(int(candidates[t]), len(setting.labels)),
            noise_multiplier=multiplier,
        )
        for t in range(options.releases)
    ]


def paper_sigma(privacy: Privacy, rounds: int, delta_iter: float | None = None) -> float:
    """Sigma of one vote by Theorem D.4, vote units: classical Gaussian, sensitivity 4, epsilon growing by sqrt(T - 1).

    It is the noise of all parties together; each of L parties adds noise of sigma / sqrt(L). For users whose k records
    are summed the sensitivity is 4 k.

    >>> round(paper_sigma(Privacy(4.0, 1e-5), 5, 1e-5), 2)
    9.69
    """
    releases = max(1, rounds - 1)
    delta_iter = delta_iter or privacy.delta / releases
    sensitivity = PAPER_SENSITIVITY * privacy.norm_factor
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta_iter)) * math.sqrt(releases) / privacy.epsilon


def paper_figures(options: Options, plan: Plan) -> dict[str, float]:
    """Sigma of Theorem D.4, its delta of one release, and epsilon that it really spends at the run's delta.

    "epsilon_really_spent" is that of all T votes of Algorithm 1; the paper's proof accounts for T - 1 of them.
    """
    privacy, accounted_rounds = plan.privacy, max(1, options.rounds - 1)
    sigma = paper_sigma(privacy, options.rounds, options.delta_iter)
    multiplier = sigma / (options.vote(1, 0).sensitivity.l2 * privacy.norm_factor)
    epsilon_of_rounds, epsilon_of_releases = (
        accounting.epsilon([accounting.Gaussian(multiplier, count=release_count)], privacy.delta)
        for release_count in (options.rounds, accounted_rounds)
    )
    return {
        "sigma": sigma,
        "delta_iter": options.delta_iter or privacy.delta / accounted_rounds,
        "epsilon_really_spent": epsilon_of_rounds,
        "epsilon_of_accounted_votes": epsilon_of_releases,
    }


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs WASP (Algorithm 1). Returns the synthetic corpus."""
    generator_count = len(run.setting.generators)
    label_count = max(1, len(run.setting.labels))
    generator_weights = np.full(generator_count, 1.0 / generator_count)
    good_texts: list[list[str]] = [[] for _ in range(label_count)]
    bad_texts: list[list[str]] = [[] for _ in range(label_count)]
    near_votes = far_votes = np.zeros(0)
    for round_index, round_size in enumerate(options.per_round()):
        run.record("weights", round_index, generator_weights.tolist())
        # Lines 4 to 6 (4.3): each generator writes its weight's share, from contrastive prompts (4.6) after round 0.
        run.generate(
            f"round {round_index + 1}",
            round_index,
            _round_orders(
                options, run, round_index, largest_remainder(generator_weights, round_size), good_texts, bad_texts
            ),
        )
        run.state_corpus(round_index, run.pool.samples)
        if round_index == options.releases:
            break
        # Lines 7 and 8 (4.4): Top-Q votes for all that was written so far, nearest and furthest.
        near_votes, far_votes = run.votes(f"votes/{round_index + 1}")
        if round_index == options.rounds - 1:
            break
        # Line 9 (Eq. 7): per label the most nearest votes make a good example, the most furthest votes a bad one.
        for label in range(label_count):
            label_rows = run.pool.of_label(label)
            good_rows = highest(near_votes, label_rows, options.shortlist)
            good_texts[label] = run.pool.texts_of(good_rows)
            if options.shows_bad:
                if options.overlap:
                    bad_choices = label_rows
                else:
                    bad_choices = np.setdiff1d(label_rows, good_rows)
                bad_texts[label] = run.pool.texts_of(highest(far_votes, bad_choices, options.shortlist))
        # Line 10 (4.5, Eq. 8): weights of the generators.
        if options.plm_weighting:
            if options.clip == "candidate":
                positive_votes = np.maximum(near_votes, 0.0)
            else:
                positive_votes = near_votes
            text_count_of_generator = np.bincount(run.pool.generator_of, minlength=generator_count)
            vote_sum_of_generator = np.bincount(
                run.pool.generator_of, weights=positive_votes, minlength=generator_count
            ).astype(np.float64)
            vote_deviations = run.sigma(f"votes/{round_index + 1}") * np.sqrt(text_count_of_generator)
            weigh_votes = _weighing(options, vote_sum_of_generator, text_count_of_generator, vote_deviations)
            generator_weights = weigh_votes(vote_sum_of_generator)
            run.record(
                "weights noise",
                round_index + 1,
                noise_effect(weigh_votes, vote_sum_of_generator, vote_deviations).tolist(),
            )
    if not options.prune:
        return run.pool.samples
    return _prune_corpus(options, run, near_votes, far_votes)


def _weighing(options: Options, received: Float64, written: Int64, deviations: Float64) -> Weighing:
    """Returns the function from each generator's votes to its weight: Eq. 8, or with its differences shrunk.

    Args:
        received, deviations: votes for the texts of each generator and the deviation of their noise, float64 [K].
        written: texts of each generator, int64 [K].
    """
    if not options.shrink:
        return partial(weights_by_votes, written=written)
    noise = float(np.sqrt(np.square(vote_rates(deviations, written)).mean()))
    signal_share = signal_fraction(vote_rates(received, written), noise)
    return lambda votes: weights_by_rates(shrunk_rates(vote_rates(votes, written), signal_share))


def _round_orders(
    options: Options, run: RunContext, t: int, counts: Int64, good: list[list[str]], bad: list[list[str]]
) -> list[Order]:
    rng = run.rng(f"round {t + 1}")
    written_count_of_label, label_shares = (
        np.zeros(len(good), dtype=np.int64),
        public_shares(options.label_shares, run.setting.labels),
    )
    round_orders = []
    for generator, text_count in zip(run.setting.generators, counts, strict=True):
        ordered_labels = deal_labels(int(text_count), label_shares, written_count_of_label)
        written_count_of_label += np.bincount(ordered_labels, minlength=len(good))
        for label in ordered_labels:
            label_name = run.setting.labels[label] if run.setting.labels else ""
            if t == 0 or not good[label]:
                round_orders.append(Order(generator, "zero_shot", label_name))
                continue
            bad_count = options.examples // 2 if options.shows_bad else 0
            round_orders.append(
                Order(
                    generator,
                    "contrast",
                    label_name,
                    good=sample_without_replacement(rng, good[label], options.examples - bad_count),
                    bad=sample_without_replacement(rng, bad[label], bad_count),
                    bad_continued=options.base_contrast,
                )
            )
    return round_orders


def _prune_corpus(options: Options, run: RunContext, near: Float64, far: Float64) -> list[Sample]:
    """Returns the corpus without each label's texts of the fewest (nearest - furthest) votes (``prune_share``)."""
    remaining_rows = []
    for label in range(max(1, len(run.setting.labels))):
        label_rows = run.pool.of_label(label)
        remaining_rows.extend(
            highest(near - far, label_rows, len(label_rows) - int(len(label_rows) * options.prune_share)).tolist()
        )
    return [run.pool.samples[i] for i in sorted(remaining_rows)]


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=lambda options, _setting: total(options.samples),
    run=run,
    paper_figures=paper_figures,
)
