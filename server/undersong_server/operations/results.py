"""What a finished run left: its files, its corpus to search, and runs side by side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.evaluation.metrics import distinct_n
from undersong_server.operations import coordinator
from undersong_server.operations.following import Plans, live
from undersong_server.operations.releases import Verdict, verify
from undersong_server.operations.run_evaluation import Evaluated, evaluated
from undersong_server.release.files import CARD_NAME, JSONL_NAME, OUTPUT_NAMES, REPORT_NAME
from undersong_server.runs.folder import RunFolder

KINDS = {
    CARD_NAME: "text/markdown; charset=utf-8",
    REPORT_NAME: "text/html; charset=utf-8",
    JSONL_NAME: "application/x-ndjson",
}


@dataclass(frozen=True)
class OutputFile:
    """One published file; ``bytes`` is its length."""

    name: str
    bytes: int
    kind: str


def _finished(home: Path, run: str) -> RunFolder:
    return CoordinatorHome(home).finished(run, "its result is here when it has finished")


def files(home: Path, run: str) -> tuple[OutputFile, ...]:
    """The files of a finished run. Raises ConfigurationError for one that has not finished."""
    folder = _finished(home, run).output
    paths = [folder / name for name in OUTPUT_NAMES if (folder / name).exists()]
    return tuple(
        OutputFile(path.name, path.stat().st_size, KINDS.get(path.name, "application/octet-stream")) for path in paths
    )


def read_file(home: Path, run: str, name: str) -> bytes:
    """One of them. Raises ConfigurationError for any other name."""
    if name not in [each.name for each in files(home, run)]:
        raise ConfigurationError(f"run {run!r} has no file {name!r}", "see the list of its files")
    return (_finished(home, run).output / name).read_bytes()


def verdict(home: Path, run: str) -> Verdict:
    """What `undersong verify` says of the run's own folder, with this coordinator's fingerprint."""
    return verify(_finished(home, run).output, fingerprint=coordinator.show(home).fingerprint)


@dataclass(frozen=True)
class Found:
    """Texts of a corpus that fit a search.

    Attributes:
        texts: their rows as they were published, in order.
        labels, generators: how many of them have each, by name.
        corpus: how many texts there are in all.
    """

    texts: tuple[Mapping[str, Any], ...]
    labels: Mapping[str, int]
    generators: Mapping[str, int]
    corpus: int


def search(home: Path, run: str, *, find: str = "", label: str = "", generator: str = "") -> Found:
    """The texts that hold ``find`` (in any case), of one label and one generator or of any.

    The counts leave out their own filter, so that they say what another choice would give.
    """
    lines = (_finished(home, run).output / JSONL_NAME).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    wanted = find.casefold()
    held = [row for row in rows if wanted in str(row.get("text", "")).casefold()]
    of_label = [row for row in held if not label or row.get("label") == label]
    of_generator = [row for row in held if not generator or row.get("generator") == generator]
    both = [row for row in of_label if not generator or row.get("generator") == generator]
    return Found(
        texts=tuple(both),
        labels=dict(Counter(str(row.get("label", "")) for row in of_generator)),
        generators=dict(Counter(str(row.get("generator", "")) for row in of_label)),
        corpus=len(rows),
    )


@dataclass(frozen=True)
class Compared:
    """One run beside others.

    Attributes:
        epsilon: promised; None where it is not private. ``spent`` is epsilon after the sums that were opened.
        weights: the last of each generator.
        calls, kept: texts ordered and kept; ``price_usd`` what they cost.
        quality: figures of the published texts by name; empty before there are any.
        evaluated: what a test file says of them; None where nobody has asked (`undersong run evaluate`).
    """

    run: str
    state: str
    method: str
    epsilon: float | None
    delta: float
    unit: str
    spent: float | None
    parties: int
    weights: Mapping[str, float]
    calls: int
    kept: int
    price_usd: float
    quality: Mapping[str, float]
    evaluated: Evaluated | None


def compare(home: Path, runs: Sequence[str], plans: Plans | None = None) -> tuple[Compared, ...]:
    """Runs side by side, in the order in which they are named. Raises ConfigurationError for an unknown one."""
    plans = plans or Plans(home)
    return tuple(_compared(home, run, plans) for run in runs)


def _compared(home: Path, run: str, plans: Plans) -> Compared:
    plan = plans.of(run)
    found = live(home, run, plan)
    folder = CoordinatorHome(home).run(run)
    epsilon = plan.figures.privacy.epsilon
    last = found.weights[-1] if found.weights else ()
    return Compared(
        run=run,
        state=folder.status().state,
        method=plan.figures.method,
        epsilon=epsilon if epsilon != float("inf") else None,
        delta=plan.figures.privacy.delta,
        unit=plan.figures.privacy.unit,
        spent=found.sums[-1].epsilon_after if found.sums else 0.0,
        parties=len(plan.planned.roster),
        weights=dict(zip(found.generators, last, strict=False)),
        calls=sum(int(used["calls"]) for used in found.usage.values()),
        kept=sum(int(used["kept"]) for used in found.usage.values()),
        price_usd=sum(float(used["price_usd"]) for used in found.usage.values()),
        quality=_quality(folder),
        evaluated=evaluated(folder),
    )


def _quality(folder: RunFolder) -> Mapping[str, float]:
    """How many texts were published, and how varied they are; empty before that. `undersong run evaluate` says more."""
    path = folder.output / JSONL_NAME
    if not path.is_file():
        return {}
    texts = [str(json.loads(line)["text"]) for line in path.read_text(encoding="utf-8").splitlines()]
    words = sorted(len(text.split()) for text in texts)
    return {
        "texts": len(texts),
        "different pairs of words": distinct_n(texts, 2),
        "median words": words[len(words) // 2],
    }
