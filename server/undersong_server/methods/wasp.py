"""WASP (Zou et al. 2025): several generators, weighted by private nearest and furthest votes, prompted by contrast.

The comments in ``run`` name the paper's parts. Deviations: each generator's noisy votes are summed and the sum is
clipped at zero before it becomes a weight (the reference normalises by a noisy total, which can be negative and then
reverses the ranking); nearest and furthest votes are one release, in separate coordinates, charged by their exact joint
sensitivity (the paper charges 4 vote units, the truth at Q = 8 is 1.633); the noise is calibrated over the releases
that are really made; a good example of a label is never a bad one, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float64, Int64
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import Plan, SumRequest
from undersong_protocol.statistics.votes import TopQVotes
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import Method, MethodOptions, RunContext, Setting
from undersong_server.methods.parts.doubt import noise_effect
from undersong_server.methods.parts.selection import (
    balanced_labels,
    generator_weights,
    highest,
    largest_remainder,
    sample_without_replacement,
    weights_by_votes,
)
from undersong_server.pool import Sample

PAPER_SENSITIVITY = 4.0  # vote units, Zou et al. 2025, theorem 1


class Options(MethodOptions):
    """[method] keys.

    Attributes:
        samples, rounds, votes: N texts in all, T, and Q.
        examples: texts that a prompt shows, half of them bad ones.
        shortlist: S, texts per label that examples are drawn from.
        furthest: False asks for nearest votes only, and prompts show no bad examples (Aug-PE's vote at ``votes`` 1).
        clip: where noisy votes are clipped at zero before they become weights: a generator's sum, or each candidate.
        plm_weighting: False has every generator write the same share in every round (the paper's ablation).
        contrastive: False shows ``examples`` good examples and no bad ones (the paper's ablation); furthest votes are
            asked for all the same, so that both have the same noise.
        prune: one more release drops the share ``prune_share`` of each label with the least votes.
    """

    samples: Annotated[int, Field(ge=1)] = 6000
    rounds: Annotated[int, Field(ge=1)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    examples: Annotated[int, Field(ge=2)] = 8
    shortlist: Annotated[int, Field(ge=1)] = 8
    furthest: bool = True
    clip: Literal["sum", "candidate"] = "sum"
    plm_weighting: bool = True
    contrastive: bool = True
    prune: bool = False
    prune_share: Annotated[float, Field(gt=0, lt=1)] = 0.1

    @property
    def shows_bad(self) -> bool:
        return self.furthest and self.contrastive

    def per_round(self) -> list[int]:
        return [int(count) for count in largest_remainder(np.ones(self.rounds), self.samples)]


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """One private sum of nearest and furthest votes after each round but the last (there too with ``prune``)."""
    releases = options.rounds if options.prune else options.rounds - 1
    candidates = np.cumsum(options.per_round())
    return [
        SumRequest(
            f"votes/{t + 1}",
            TopQVotes(
                q=options.votes,
                candidates=int(candidates[t]),
                labels=len(setting.labels),
                furthest=options.furthest,
            ),
        )
        for t in range(releases)
    ]


def generator_calls(options: Options, setting: Setting) -> int:
    return options.samples


def paper_figures(options: Options, plan: Plan) -> dict[str, float]:
    """Sigma of the paper's theorem 1 (classical Gaussian, sensitivity 4, T - 1 releases) and what it really spends.

    The theorem's delta_iter is the delta of one release and lies below delta / (T - 1); sigma is that of this limit,
    and "delta_iter" says it. What is really spent is epsilon at the whole run's delta.
    """
    privacy, releases = plan.privacy, max(1, options.rounds - 1)
    delta_iter = privacy.delta / releases
    sensitivity = PAPER_SENSITIVITY * privacy.norm_factor
    sigma = sensitivity * math.sqrt(2 * math.log(1.25 / delta_iter)) * math.sqrt(releases) / privacy.epsilon
    statistic = TopQVotes(q=options.votes, candidates=1, labels=0, furthest=options.furthest)
    exact = statistic.sensitivity.l2 * privacy.norm_factor
    spent = accounting.epsilon([accounting.Gaussian(sigma / exact, count=releases)], privacy.delta)
    return {"sigma": sigma, "delta_iter": delta_iter, "epsilon_really_spent": spent}


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """The method. Returns the synthetic corpus."""
    generators = len(run.setting.generators)
    labels = max(1, len(run.setting.labels))
    weights = np.full(generators, 1.0 / generators)
    good: list[list[str]] = [[] for _ in range(labels)]
    bad: list[list[str]] = [[] for _ in range(labels)]
    for t, count in enumerate(options.per_round()):
        run.record("weights", t, weights.tolist())
        # Each generator writes its weight's share, from contrastive in-context prompts once there are examples.
        run.generate(f"round {t + 1}", t, _orders(options, run, t, largest_remainder(weights, count), good, bad))
        if t == options.rounds - 1:
            break
        # Differentially private Top-Q voting: the nearest and furthest candidates of each record.
        near, far = run.votes(f"votes/{t + 1}")
        # Section 3.3: weights of the generators.
        if options.plm_weighting:
            counted = np.maximum(near, 0.0) if options.clip == "candidate" else near
            weights = generator_weights(counted, run.pool.generator_of, generators)
            run.record("weights noise", t + 1, _noise(counted, run, f"votes/{t + 1}").tolist())
        # Examples per label: the most nearest votes make a good one, the most furthest votes a bad one.
        for label in range(labels):
            members = run.pool.of_label(label)
            good[label] = run.pool.texts_of(highest(near, members, options.shortlist))
            if options.shows_bad:
                others = np.setdiff1d(members, highest(near, members, options.shortlist))
                bad[label] = run.pool.texts_of(highest(far, others, options.shortlist))
    return run.pool.samples if not options.prune else _pruned(options, run)


def _noise(votes: Float64, run: RunContext, name: str) -> Float64:
    """Standard deviation that the noise of the opened votes gives each generator's weight, float64 [K]."""
    written = np.bincount(run.pool.generator_of, minlength=len(run.setting.generators))
    received = np.bincount(run.pool.generator_of, weights=votes, minlength=len(written)).astype(np.float64)
    deviations = run.sigma(name) * np.sqrt(written)
    return noise_effect(lambda numbers: weights_by_votes(numbers, written), received, deviations)


def _orders(
    options: Options, run: RunContext, t: int, counts: Int64, good: list[list[str]], bad: list[list[str]]
) -> list[Order]:
    rng = run.rng(f"round {t + 1}")
    written = np.zeros(len(good), dtype=np.int64)
    orders = []
    for generator, count in zip(run.setting.generators, counts, strict=True):
        wanted = balanced_labels(int(count), len(good), written)
        written += np.bincount(wanted, minlength=len(good))
        for label in wanted:
            name = run.setting.labels[label] if run.setting.labels else ""
            if t == 0 or not good[label]:
                orders.append(Order(generator, "zero_shot", name))
                continue
            half = options.examples // 2 if options.shows_bad else 0
            orders.append(
                Order(
                    generator,
                    "contrast",
                    name,
                    good=sample_without_replacement(rng, good[label], options.examples - half),
                    bad=sample_without_replacement(rng, bad[label], half),
                )
            )
    return orders


def _pruned(options: Options, run: RunContext) -> list[Sample]:
    """The corpus without the share of each label that has the least (nearest - furthest) votes of one more release."""
    near, far = run.votes(f"votes/{options.rounds}")  # far is all zero without furthest votes
    keep = []
    for label in range(max(1, len(run.setting.labels))):
        members = run.pool.of_label(label)
        keep.extend(highest(near - far, members, len(members) - int(len(members) * options.prune_share)).tolist())
    return [run.pool.samples[i] for i in sorted(keep)]


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
    paper_figures=paper_figures,
)
