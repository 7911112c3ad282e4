"""Screen of ``undersong plan``."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType

from undersong_common.plurals import counted
from undersong_common.rows import Rows
from undersong_server.runs.plan_figures import PUBLIC_NOTICE, PlanFigures

HEADINGS = (
    "statistic",
    "releases",
    "dimension",
    "L1",
    "L2",
    "sigma",
    "sigma (integer)",
    "share per party",
    "modulus",
    "epsilon so far",
)


def render(figures: PlanFigures) -> RenderableType:
    """The plan's figures as a table and a few sentences."""
    privacy, quorum = figures.privacy, figures.quorum
    rows = []
    for each in figures.sums:
        dimensions = each.dimension
        span = f"{dimensions[0]}" if len(set(dimensions)) == 1 else f"{dimensions[0]}..{dimensions[-1]}"
        rows.append(
            (
                each.statistic,
                str(each.releases),
                span,
                f"{each.l1_sensitivity:.4f}",
                f"{each.l2_sensitivity:.4f}",
                f"{each.sigma:.3f}",
                f"{each.sigma_integer:.2f}",
                f"{each.share_sigma_integer:.2f}",
                f"{each.modulus_bits} bits",
                "no privacy" if each.epsilon_so_far is None else f"{each.epsilon_so_far:.3f}",
            )
        )
    table = Rows(HEADINGS, rows, title=f"private sums of {figures.method!r}", left=1)
    lines = [
        f"Promise: epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for one {privacy.unit}"
        + (
            f" (at most {counted(privacy.max_per_unit, 'record')}, their {privacy.contribution})"
            if privacy.unit != "sample"
            else ""
        )
        + ", add/remove neighbours.",
        f"Federation: {counted(quorum.parties, 'party', 'parties')}, threshold {quorum.threshold},"
        f" {quorum.tolerated_dropouts} may drop out, {quorum.colluders} may collude with the coordinator;"
        f" post-quantum masks {'on' if quorum.post_quantum else 'off'}.",
    ]
    collude = figures.epsilon_if_all_others_collude
    if collude is not None:
        lines.append(f"If every other party colludes, one party's own noise alone still gives epsilon {collude:.3f}.")
    foreign = {each.statistic: each.source for each in figures.sums if each.source}
    lines.extend(
        f"The statistic {name} is another package's: every party must trust it with the source {source}."
        for name, source in foreign.items()
    )
    lines.extend(f"Weak: {sentence}." for sentence in figures.weak)
    lines.extend(figures.method_notes)
    if figures.paper is not None:
        lines.append(_paper(figures.paper))
    trials = f" and {figures.trial_calls} for trial texts before the first private sum" if figures.trial_calls else ""
    lines.append(
        f"Generators: {counted(figures.generator_calls, 'call')} ({', '.join(figures.generators)}){trials},"
        " retries apart."
    )
    if (cost := figures.cost) is not None:
        low, high = cost.tokens
        price = "no price is configured"
        if cost.price_usd:
            price = f"US$ {cost.price_usd[0]:.2f} to {cost.price_usd[1]:.2f}"
        lines.append(
            f"Expected, with as many calls of each generator: {low:,} to {high:,} tokens, {price},"
            f" {cost.seconds[0]:.0f} to {cost.seconds[1]:.0f} s."
        )
    lines.append(f"Note: {PUBLIC_NOTICE}.")
    return Group(table, *lines)


def _paper(paper: Mapping[str, float]) -> str:
    of = f" (at delta {paper['delta_iter']:.3g} for each release)" if "delta_iter" in paper else ""
    sentence = (
        f"For information: the paper's own sigma is {paper['sigma']:.4f}{of}, which really spends epsilon"
        f" {paper['epsilon_really_spent']:.3f}"
    )
    if "sigma_composed_jointly" in paper:
        sentence += f"; its mechanisms composed together would need {paper['sigma_composed_jointly']:.4f}"
    return sentence + "."
