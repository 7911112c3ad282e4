"""What a run will cost, before anything is spent: every private sum, its noise, and the generators' calls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_protocol.plan import Plan, PlannedSum, plan_sums
from undersong_server import methods
from undersong_server.methods.interface import Setting
from undersong_server.runs.task import Task

PUBLIC_NOTICE = (
    "task.description, task.labels and the prompts go to the model provider: they count as public, so write nothing"
    " private there"
)


@dataclass(frozen=True)
class RunPlan:
    """A plan with what surrounds it. ``generator_calls`` counts texts ordered, without retries."""

    task: Task
    setting: Setting
    plan: Plan
    generator_calls: int


def plan_run(task: Task) -> RunPlan:
    """The plan of a task. Raises ConfigurationError where the method cannot run as configured."""
    if not task.generators:
        raise ConfigurationError("the task names no generator", "add a [[generators]] section")
    method = methods.load(task.method.name)
    setting = Setting(
        labels=task.task.labels,
        generators=tuple(generator.name for generator in task.generators),
        folder=task.locate(""),
        privacy=task.privacy.promise(),
        quorum=task.quorum(),
    )
    options = task.options
    plan = plan_sums(method.plan(options, setting), task.privacy.promise(), task.quorum())
    if math.isfinite(task.privacy.epsilon):
        plan.verify()
    return RunPlan(task, setting, plan, method.generator_calls(options, setting))


def to_json(run: RunPlan) -> dict[str, Any]:
    """The JSON of ``undersong plan``: sensitivity and sigma in natural units (one vote = 1)."""
    privacy = run.plan.privacy
    calls = math.ceil(run.generator_calls / len(run.task.generators))
    estimates = [generator.estimate(calls) for generator in run.task.generators]
    result: dict[str, Any] = {
        "epsilon": privacy.epsilon if math.isfinite(privacy.epsilon) else None,
        "delta": privacy.delta,
        "unit": privacy.unit,
        "queries": [
            {
                "statistic": group[0].statistic,
                "releases": len(group),
                "noise": group[0].law,
                "dimension": [planned.dimension for planned in group],
                "l1_sensitivity": group[0].l1,
                "l2_sensitivity": group[0].l2,
                "sigma": group[0].sigma,
                "sigma_integer": group[0].sigma_integer,
                "scale": group[0].scale,
                "modulus_bits": max(planned.modulus_bits for planned in group),
                "share_sigma_integer": share_sigma(run.plan, group[0]),
                "epsilon_so_far": run.plan.epsilon_after(last) if math.isfinite(privacy.epsilon) else None,
            }
            for group, last in _groups(run.plan)
        ],
        "epsilon_if_all_others_collude": _if_all_others_collude(run.plan),
        "generator_calls": run.generator_calls,
        "notice": PUBLIC_NOTICE,
    }
    if any(estimate.tokens[1] for estimate in estimates):
        result["tokens"] = [sum(estimate.tokens[end] for estimate in estimates) for end in (0, 1)]
        priced = [estimate.price_usd for estimate in estimates if estimate.price_usd is not None]
        known = len(priced) == len(estimates)
        result["price_usd"] = [sum(price[end] for price in priced) for end in (0, 1)] if known else None
        result["time_s"] = [max(estimate.seconds[end] for estimate in estimates) for end in (0, 1)]
    notes = getattr(methods.load(run.task.method.name), "notes", None)
    if notes is not None:
        result["method_notes"] = notes(run.task.options, run.setting)
    paper = _paper_figures(run)
    if paper is not None:
        result["paper"] = paper
    return result


def _if_all_others_collude(plan: Plan) -> float | None:
    """None where there is no such figure: nothing is asked, nothing is private, or Laplace shares give no bound."""
    if not plan.sums or not math.isfinite(plan.privacy.epsilon):
        return None
    epsilon = plan.epsilon_if_all_others_collude()
    return epsilon if math.isfinite(epsilon) else None


def share_sigma(plan: Plan, planned: PlannedSum) -> float:
    """Standard deviation, integer units, of the noise each party adds (before XNoise removes the excess)."""
    honest = plan.quorum.parties - plan.quorum.tolerated_dropouts - plan.quorum.colluders
    return planned.drawn_sigma_integer / math.sqrt(honest)


def _groups(plan: Plan) -> list[tuple[list[PlannedSum], int]]:
    """Neighbouring sums that differ in dimension only, with the number of sums up to the group's end."""
    groups: list[tuple[list[PlannedSum], int]] = []
    for number, planned in enumerate(plan.sums, start=1):
        if groups and _kind(groups[-1][0][0]) == _kind(planned):
            groups[-1] = ([*groups[-1][0], planned], number)
        else:
            groups.append(([planned], number))
    return groups


def _kind(planned: PlannedSum) -> tuple[object, ...]:
    return (planned.statistic, planned.l2, planned.scale, planned.sigma_integer, planned.sampling_rate, planned.law)


def _paper_figures(run: RunPlan) -> dict[str, float] | None:
    """What the method's paper would charge, as information beside the exact plan."""
    method = methods.load(run.task.method.name)
    figures = getattr(method, "paper_figures", None)
    if figures is None or not math.isfinite(run.task.privacy.epsilon):
        return None
    result: dict[str, float] = figures(run.task.options, run.plan)
    return result
