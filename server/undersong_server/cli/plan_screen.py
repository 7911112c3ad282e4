"""``undersong plan`` as a person reads it."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from undersong_server.runs.planning import RunPlan


def render(run: RunPlan, figures: dict[str, Any]) -> RenderableType:
    """The plan's figures (``planning.to_json``) as a table and a few sentences."""
    privacy, quorum = run.plan.privacy, run.plan.quorum
    table = Table(title=f"private sums of {run.task.method.name!r}", title_justify="left")
    for heading in ("statistic", "releases", "dimension", "L1", "L2", "sigma", "sigma (integer)"):
        table.add_column(heading, justify="left" if heading == "statistic" else "right")
    for heading in ("share a party", "modulus", "epsilon so far"):
        table.add_column(heading, justify="right")
    for query in figures["queries"]:
        dimensions = query["dimension"]
        span = f"{dimensions[0]}" if len(set(dimensions)) == 1 else f"{dimensions[0]}..{dimensions[-1]}"
        spent = query["epsilon_so_far"]
        table.add_row(
            query["statistic"],
            str(query["releases"]),
            span,
            f"{query['l1_sensitivity']:.4f}",
            f"{query['l2_sensitivity']:.4f}",
            f"{query['sigma']:.3f}",
            f"{query['sigma_integer']:.2f}",
            f"{query['share_sigma_integer']:.2f}",
            f"{query['modulus_bits']} bits",
            "no privacy" if spent is None else f"{spent:.3f}",
        )
    lines = [
        f"Promise: epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for one {privacy.unit}"
        + (
            f" (at most {privacy.max_per_unit} records, their {privacy.contribution})"
            if privacy.unit != "sample"
            else ""
        )
        + ", add/remove neighbours.",
        f"Federation: {quorum.parties} parties, threshold {quorum.threshold}, {quorum.tolerated_dropouts} may drop out,"
        f" {quorum.colluders} may collude with the coordinator.",
    ]
    collude = figures["epsilon_if_all_others_collude"]
    if collude is not None:
        lines.append(f"If every other party colludes, one party's own noise alone still gives epsilon {collude:.3f}.")
    lines.extend(figures.get("method_notes", ()))
    if "paper" in figures:
        paper = figures["paper"]
        sentence = (
            f"For information: the paper's own sigma is {paper['sigma']:.4f}, which really spends epsilon"
            f" {paper['epsilon_really_spent']:.3f}"
        )
        if "sigma_composed_jointly" in paper:
            sentence += f"; its mechanisms composed together would need {paper['sigma_composed_jointly']:.4f}"
        lines.append(sentence + ".")
    lines.append(
        f"Generators: {figures['generator_calls']} calls ({', '.join(run.setting.generators)}), retries apart."
    )
    if "tokens" in figures:
        low, high = figures["tokens"]
        price = figures["price_usd"]
        cost = f"US$ {price[0]:.2f} to {price[1]:.2f}" if price else "no price is configured"
        lines.append(
            f"Expected: {low:,} to {high:,} tokens, {cost}, {figures['time_s'][0]:.0f} to {figures['time_s'][1]:.0f} s."
        )
    lines.append(f"Note: {figures['notice']}.")
    return Group(table, *lines)
