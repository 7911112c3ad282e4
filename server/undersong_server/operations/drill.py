"""A rehearsal's coordinator: a folder, keys and invitations of its own, and a small task. All else is real."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from undersong_common import drill
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_server import defaults
from undersong_server.operations import coordinator, enrolment
from undersong_server.operations.coordinator import CoordinatorFacts

CORPUS_TEXTS = 300
TASK = """\
# A rehearsal: invented records at every party, two small generators, a few private sums. Plan it like any other task.
[task]
name = "drill"
description = {description}
labels = {labels}
purpose = "A rehearsal of the federation, its people and its machines."

[publication]
where = "nowhere: what comes out is thrown away"
language = "en"

[privacy]
epsilon = 2.0
delta = 1e-5
unit = "user"
max_per_user = 4

[federation]
parties = {parties}
tolerated_dropouts = {dropouts}
colluders = 0

[method]
name = "wasp"
samples = 120
rounds = 3
examples = 4
shortlist = 4

[[generators]]
name = "logbook"
kind = "ngram"
corpus = "logbook.jsonl"

[[generators]]
name = "jumble"
kind = "ngram"
corpus = "jumble.jsonl"
"""


@dataclass(frozen=True)
class Drill:
    """A drill that was set up.

    Attributes:
        task: the task file; packages: one enrolment package per party, handed over like passwords.
    """

    coordinator: CoordinatorFacts
    task: Path
    packages: tuple[Path, ...]


def create(
    home: Path,
    *,
    name: str,
    addresses: Sequence[str],
    parties: Sequence[str],
    bind: str = defaults.BIND,
    metrics: str = defaults.METRICS,
) -> Drill:
    """Makes the coordinator, invites the parties, and writes the task and its public corpora into ``home/drill``.

    Raises ConfigurationError for fewer than three parties, a name twice, or where a coordinator exists.
    """
    if len(parties) < 3 or len(set(parties)) < len(parties):
        raise ConfigurationError(
            f"a drill has three parties at least, each once; named are {len(parties)}", "repeat --party NAME"
        )
    made = coordinator.create(home, name=name, addresses=addresses, bind=bind, metrics=metrics, drill=True)
    folder = home / "drill"
    folder.mkdir()
    chance = random.SystemRandom()
    texts = [{"text": each.text, "label": each.label} for each in drill.invented(CORPUS_TEXTS, chance)]
    _write(folder / "logbook.jsonl", texts)
    labels = [each["label"] for each in texts]
    chance.shuffle(labels)
    _write(folder / "jumble.jsonl", [{**each, "label": label} for each, label in zip(texts, labels, strict=True)])
    task = folder / "task.toml"
    task.write_text(
        TASK.format(
            description=json.dumps(drill.DESCRIPTION),
            labels=json.dumps(list(drill.LABELS)),
            parties=len(parties),
            dropouts=1 if len(parties) > 3 else 0,
        ),
        encoding="utf-8",
    )
    packages = []
    for party in parties:
        package = folder / f"{party}.package"
        replace_file(package, enrolment.invite(home, party).package)
        packages.append(package)
    return Drill(made, task, tuple(packages))


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
