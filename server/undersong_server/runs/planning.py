"""The plan of a run, made before anything is spent: private sums, their noise, and the generators' calls.

The parts of a task that need other packages or files are built here too: statistics, prompts and the author.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common import configuration, plugins
from undersong_common.embedding import Embed
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.printable import counted, printable
from undersong_protocol import statistics
from undersong_protocol.agreement.plan import Plan, SumRequest, plan_sums
from undersong_server import methods
from undersong_server.generators.author import TRIAL_ORDERS, Author
from undersong_server.generators.cleaning import Screening
from undersong_server.generators.interface import Surroundings
from undersong_server.generators.orders import DrawWords
from undersong_server.journal import Journal
from undersong_server.methods.interface import Attribute, Setting
from undersong_server.methods.parts import papers
from undersong_server.methods.parts.lengths import NAME, with_lengths
from undersong_server.progress import Progress
from undersong_server.prompts.rendering import Prompts
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
        attributes=tuple(
            Attribute(each.name, each.values, each.column is not None)
            for each in sorted(task.attributes, key=lambda each: each.column is not None)
        ),
        steerable=tuple(generator.steerable for generator in task.generators),
    )
    if task.attributes and not method.reads_attributes:
        raise ConfigurationError(
            f"the method {task.method.name!r} does not read [[attributes]]", "take them out, or use another method"
        )
    options = task.options
    requests = method.plan(options, setting)
    if requests and not method.makes_private_sums:
        raise InternalError(f"the method {task.method.name!r} plans private sums and states that it makes none")
    # A baseline that asks no party anything keeps to that.
    if task.privacy.lengths and method.makes_private_sums and not method.measures_lengths:
        requests = with_lengths(requests, task.privacy.lengths_share)
    register_statistics(requests)
    plan = plan_sums(requests, task.privacy.promise(), task.quorum())
    if math.isfinite(task.privacy.epsilon):
        plan.verify()
    asks_first = NAME in {planned.name for planned in plan.sums} or method.asks_first(options, setting)
    return RunPlan(task, setting, plan, method.generator_calls(options, setting), TRIAL_ORDERS if asks_first else 0)


@dataclass(frozen=True)
class Planned:
    """A planned run of the coordinator, as ``undersong run plan`` fixed it.

    Attributes:
        name: name of the run, in the manifest and of its folder.
        task: the task file with its overrides, as read; ``folder`` is where its relative paths start.
        roster: names of the parties that take part.
        seed: seed of every public draw.
        insecure_noise_seed: tests only: the parties' noise is no secret, and the outputs say so.
        patience_s: longest wait of one request for a party.
    """

    name: str
    task: Mapping[str, Any]
    folder: str
    roster: tuple[str, ...]
    seed: int
    insecure_noise_seed: int | None
    patience_s: float

    def load(self) -> RunPlan:
        """The plan with its noise, computed anew. Raises ConfigurationError."""
        return plan_run(coordinator_task(self.task, Path(self.folder), self.roster))


def coordinator_task(data: Mapping[str, Any], folder: Path, roster: Sequence[str]) -> Task:
    """A task as the coordinator runs it: it knows the number of parties, and nothing of their files."""
    stated = data.get("federation", {}).get("parties")
    if stated is not None and stated != len(roster):
        raise ConfigurationError(
            f"federation.parties is {stated}, but {counted(len(roster), 'party takes', 'parties take')} part:"
            f" {', '.join(roster)}",
            "correct the task file, or name the parties with --parties A,B,C",
        )
    own = {key: value for key, value in data.items() if key != "data"}
    kept = {key: value for key, value in data.get("data", {}).items() if key in ("root", "text", "label")}
    federation = {**data.get("federation", {}), "parties": len(roster)}
    task = configuration.validate(
        Task, {**own, "data": kept, "federation": federation, "folder": folder}, "the task file"
    )
    _ = task.options  # an invalid method option is found now, not when the method starts
    preset = str((task.method.model_extra or {}).get("preset", ""))
    if steps := papers.forbidden(task.method.name, preset):
        raise ConfigurationError(
            f"method.preset {preset!r} of {task.method.name!r} is not private as the paper states: {'; '.join(steps)}",
            "run it by `undersong simulate`, or leave method.preset out",
            code="not-private",
        )
    return task


def build_author(
    task: Task, embed: Embed, environment: Mapping[str, str], journal: Journal, progress: Progress, *, seed: int
) -> Author:
    """The author of a task: its generators and its prompts, the task's own templates among them.

    Args:
        embed: texts -> quantised unit embeddings, for generators that draw by similarity.
        environment: where generators find their keys, such as ``os.environ``.
        journal: keeps every answer.
        seed: of the generators' requests.

    Raises ConfigurationError for a generator or a prompt that cannot be built.
    """
    folder = task.locate("")
    around = Surroundings(task.task.labels, folder, embed, environment, journal)
    return Author(
        {settings.name: settings.build(around) for settings in task.generators},
        build_prompts(task),
        journal,
        progress,
        seed=seed,
        formats={settings.name: settings.prompt_format(folder) for settings in task.generators},
        draw_words=public_lengths(task),
        screening=Screening(embed, bound=task.prompts.near_duplicate),
    )


def build_prompts(task: Task, *, alike: bool = False) -> Prompts:
    """The prompts of a task: built-in templates, except those that its [prompts] folder replaces.

    Args:
        alike: every prompt of one label is the same, for a model that is trained on it.
    """
    folder = task.locate(task.prompts.folder) if task.prompts.folder else None
    words = task.task.model_copy(update={"line_breaks": task.task.line_breaks or alike})
    return Prompts(words, variety=task.prompts.variety and not alike, folder=folder)


def public_lengths(task: Task) -> DrawWords | None:
    """Lengths between the task's public bounds: short and long ones are equally likely by their ratio."""
    if task.task.words is None:
        return None
    low, high = task.task.words
    return lambda draw: round(math.exp(draw.uniform(math.log(low), math.log(high))))


def register_statistics(requests: Iterable[SumRequest]) -> None:
    """Makes the statistics of a method's requests known, each with the hash of its package's source.

    Raises ConfigurationError for one that no package declares, or that is another class than the declared one.
    """
    for request in requests:
        asked = type(request.statistic)
        if asked.__module__.startswith("undersong_protocol.") or statistics.source(asked.name):
            continue
        plugin = plugins.find("statistics", asked.name)
        if plugin is None:
            raise ConfigurationError(
                f"{request.name}: no installed package declares the statistic {asked.name!r}",
                "declare it by an entry point of undersong.statistics: parties trust it by its name and hash",
            )
        if plugins.load(plugin) is not asked:
            raise ConfigurationError(
                f"{request.name}: {plugin.words} declares another statistic {asked.name!r} than the method asks for",
                "correct the entry point",
            )
        statistics.register_foreign(asked.name, asked, plugins.source_hash(plugin))


def register_named_statistics(sources: Iterable[tuple[str, str]]) -> None:
    """Makes statistics known that a plan names with these source hashes ("" for this program's own).

    Raises ConfigurationError where what is installed here is not just that; nothing else is imported.
    """
    for name, source in dict(sources).items():
        if not source or statistics.source(name) == source:
            continue
        plugin = plugins.find("statistics", name)
        if plugin is None or plugins.source_hash(plugin) != source:
            raise ConfigurationError(
                f"the plan's statistic {printable(name, 60)!r} is another package's, which is not installed here with"
                f" the plan's source {printable(str(source), 64)}",
                "install that very release of its package",
            )
        statistics.register_foreign(name, plugins.load(plugin, source), source)


def register_installed_statistics() -> None:
    """Makes every installed statistic known, in a process that computes for simulated parties and plans nothing."""
    for plugin in plugins.installed("statistics"):
        statistics.register_foreign(plugin.name, plugins.load(plugin), plugins.source_hash(plugin))
