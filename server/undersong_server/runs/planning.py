"""The plan of a run, before anything is spent: every private sum, its noise, and the generators' calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from undersong_common.errors import ConfigurationError, InternalError
from undersong_protocol.plan import Plan, plan_sums
from undersong_server import methods
from undersong_server.generators.author import TRIAL_ORDERS
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts.lengths import NAME, with_lengths
from undersong_server.runs import foreign_statistics
from undersong_server.runs.task import Task


@dataclass(frozen=True)
class RunPlan:
    """A task's plan and its public setting.

    Attributes:
        generator_calls: texts ordered, without retries.
        trial_calls: texts of each generator that reads prompts, for no corpus, before the first private sum.
    """

    task: Task
    setting: Setting
    plan: Plan
    generator_calls: int
    trial_calls: int = 0


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
        embedder=task.embedder.model,
        expected_records=task.privacy.expected_records,
    )
    options = task.options
    requests = method.plan(options, setting)
    if requests and not method.makes_private_sums:
        raise InternalError(f"the method {task.method.name!r} plans private sums and states that it makes none")
    # A baseline that asks no party anything keeps to that.
    if task.privacy.lengths and method.makes_private_sums and not method.measures_lengths:
        requests = with_lengths(requests, task.privacy.lengths_share)
    foreign_statistics.register(requests)
    plan = plan_sums(requests, task.privacy.promise(), task.quorum())
    if math.isfinite(task.privacy.epsilon):
        plan.verify()
    asks_first = NAME in {planned.name for planned in plan.sums} or method.asks_first(options, setting)
    return RunPlan(task, setting, plan, method.generator_calls(options, setting), TRIAL_ORDERS if asks_first else 0)
