"""Live results of a run: weights, sums, texts; and the generators' usage over several runs."""

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.runs.planning import PlanFigures, Planned, plan_figures

MOST_TEXTS = 60


@dataclass(frozen=True)
class Text:
    """One written text, which a language model wrote: untrusted."""

    text: str
    label: str
    generator: str
    round: int


@dataclass(frozen=True)
class OpenedSum:
    """A private sum that was opened.

    Attributes:
        sigma: standard deviation of its noise, natural units.
        epsilon_after: epsilon spent in all after it; None if the run is not private.
        vote_fractions, noise: each generator's fraction of the votes, and the standard deviation of its noise; empty if
            the sum counts no votes for candidates.
    """

    name: str
    at: float
    survivors: tuple[str, ...]
    sigma: float
    epsilon_after: float | None
    vote_fractions: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()


@dataclass(frozen=True)
class LiveRun:
    """Results that a run has recorded so far.

    Attributes:
        weights: rows by round, one weight per generator.
        weights_noise: by round, the standard deviation of each weight's noise, if the method reports it.
        texts: the latest texts, newest first; ``written`` counts all.
        usage: per generator, the counts of :class:`undersong_server.generators.author.Usage` and of
            :class:`undersong_server.generators.asking.Speed`; ``counted`` holds the generator's own counts.
        times: end of each step as (seconds since the epoch, texts in all), for a rate.
        ordered: number of texts that the plan orders.
    """

    generators: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    sums: tuple[OpenedSum, ...]
    texts: tuple[Text, ...]
    written: int
    usage: Mapping[str, Mapping[str, Any]]
    times: tuple[tuple[float, int], ...] = field(default=())
    weights_noise: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    ordered: int = 0

    @property
    def rate(self) -> float | None:
        """Texts per second over the last step; None before there are two."""
        if len(self.times) < 2:
            return None
        (before, had), (after, has) = self.times[-2:]
        return (has - had) / (after - before) if after > before and has > had else None

    def generator_left_s(self, name: str) -> float | None:
        """Seconds of writing left for a generator at its own rate and last weight; None before its first answer."""
        rate = answer_rate(self.usage.get(name, {}))
        if rate is None or name not in self.generators:
            return None
        share = self.weights[-1][self.generators.index(name)] if self.weights else 1.0 / len(self.generators)
        return max(0, self.ordered - self.written) * share / rate

    @property
    def left_s(self) -> float | None:
        """Seconds of writing left at :attr:`rate`; None before there is one."""
        return None if self.rate is None else max(0, self.ordered - self.written) / self.rate


def answer_rate(used: Mapping[str, Any]) -> float | None:
    """Answers per second of a generator while calls were under way; None before the first answer."""
    return used["answered"] / used["busy_s"] if used.get("busy_s") else None


def mean_latency_s(used: Mapping[str, Any]) -> float | None:
    """Mean seconds from a call's first attempt to its answer; None if the generator does not report it."""
    return used["latency_s"] / used["timed"] if used.get("timed") else None


@dataclass(frozen=True)
class RunPlanFacts:
    """A run's plan: its figures, and epsilon after each private sum (empty if the run is not private)."""

    planned: Planned
    figures: PlanFigures
    sums: tuple[str, ...]
    epsilon_after: tuple[float, ...]


class Plans:
    """The plans of runs, each computed once until its file changes, since its noise takes a second to compute."""

    def __init__(self, home: Path) -> None:
        self._home = CoordinatorHome(home)
        self._known: dict[tuple[str, int], RunPlanFacts] = {}
        self._lock = threading.Lock()

    def of(self, run: str) -> RunPlanFacts:
        """Returns the plan of a run. Raises ConfigurationError for an unknown run."""
        folder = self._home.run(run)
        planned = folder.planned()
        mark = run, (folder.path / "plan.json").stat().st_mtime_ns  # limits of its generators may be changed
        known = self._known.get(mark)
        if known is not None:
            return known
        with self._lock:
            loaded = planned.load()
            plan = loaded.plan
            private = math.isfinite(plan.privacy.epsilon)
            after = tuple(plan.epsilon_after(count + 1) for count in range(len(plan.sums))) if private else ()
            facts = RunPlanFacts(planned, plan_figures(loaded), tuple(each.name for each in plan.sums), after)
            if len(self._known) >= 200:
                self._known.clear()
            self._known[mark] = facts
        return facts


def live(home: Path, run: str, plan: RunPlanFacts) -> LiveRun:
    """Returns the results that a run has recorded so far. Raises ConfigurationError for an unknown run."""
    weights: dict[int, tuple[float, ...]] = {}
    noise: dict[int, tuple[float, ...]] = {}
    sums: dict[str, OpenedSum] = {}
    texts: list[Text] = []
    usage: Mapping[str, Mapping[str, Any]] = {}
    times: list[tuple[float, int]] = []
    for event in CoordinatorHome(home).run(run).live():
        if event["kind"] == "record" and event["name"] == "weights":
            weights[int(event["round"])] = tuple(event["value"])
        elif event["kind"] == "record" and event["name"] == "weights noise":
            noise[int(event["round"])] = tuple(event["value"])
        elif event["kind"] == "sum":
            after = len(sums) if event["name"] not in sums else None
            sums[event["name"]] = OpenedSum(
                event["name"],
                event["at"],
                tuple(event["survivors"]),
                event["sigma"],
                plan.epsilon_after[after] if after is not None and after < len(plan.epsilon_after) else None,
                tuple(event.get("shares", ())),
                tuple(event.get("noise", ())),
            )
        elif event["kind"] == "texts":
            texts += [Text(text, label, generator, event["round"]) for text, label, generator in event["texts"]]
            times.append((event["at"], len(texts)))
        elif event["kind"] == "usage":
            usage = event["usage"]
    return LiveRun(
        generators=plan.figures.generators,
        weights=tuple(weights[round_] for round_ in sorted(weights)),
        sums=tuple(sums.values()),
        texts=tuple(texts[: -MOST_TEXTS - 1 : -1]),
        written=len(texts),
        usage=usage,
        times=tuple(times),
        weights_noise=noise,
        ordered=plan.figures.generator_calls,
    )


@dataclass(frozen=True)
class GeneratorUsage:
    """Usage of one generator over several runs.

    Attributes:
        run: the newest run, whose task a trial takes.
        runs: number of runs in which it has written.
        counts: sums of the counts of :class:`undersong_server.generators.author.Usage`; ``faults`` by kind.
        counted: the generator's own counts besides its calls: waits for a limit, retries, answers from a cache, ...
    """

    name: str
    kind: str
    run: str
    runs: int
    counts: Mapping[str, float]
    faults: Mapping[str, float]
    counted: Mapping[str, float]


def generator_usage(home: Path, runs: Sequence[str]) -> tuple[GeneratorUsage, ...]:
    """Returns the usage of every generator of these runs, by name.

    Args:
        runs: newest first.
    """
    found: dict[str, GeneratorUsage] = {}
    for run in runs:
        folder = CoordinatorHome(home).run(run)
        used = folder.usage()
        for table in folder.planned().task.get("generators", ()):
            name = str(table.get("name", ""))
            new = GeneratorUsage(name, str(table.get("kind", "")), run, 0, Counter(), Counter(), Counter())
            before, more = found.get(name, new), used.get(name, {})
            own = {key.replace("_", " "): count for key, count in more.get("counted", {}).items() if key != "calls"}
            found[name] = GeneratorUsage(
                *(name, before.kind, before.run, before.runs + (name in used)),
                counts=_sum(before.counts, more),
                faults=_sum(before.faults, more.get("faults", {})),
                counted=_sum(before.counted, own),
            )
    return tuple(found[name] for name in sorted(found))


def _sum(total: Mapping[str, float], more: Mapping[str, object]) -> dict[str, float]:
    """Adds the numbers of ``more`` to those of ``total``; values of other types are left out."""
    numbers = {key: value for key, value in more.items() if isinstance(value, (int, float))}
    return {key: total.get(key, 0) + numbers.get(key, 0) for key in [*total, *(numbers.keys() - total.keys())]}
