"""Invented records for drills (rehearsals of a run), and the words that mark a drill on every screen.

A drill runs the real programs with other keys and invented records. A folder is marked as a drill's when it is made, by
the person who makes it; no message says so, and none could make a party treat a run as a drill.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

MARK = "DRILL"
PARTY_WORDS = f"{MARK}: the records of this folder are invented, and its keys are of no other use."
COORDINATOR_WORDS = f"{MARK}: this coordinator is for rehearsals; what it publishes says nothing about anybody."

DESCRIPTION = "an entry in the log of an invented lighthouse"
LABELS = ("weather", "ships", "repairs")

_OPENINGS = ("At dawn", "Before noon", "Towards evening", "In the second watch", "Shortly after eight", "All night")
_SUBJECTS = {
    "weather": ("fog", "a squall", "heavy swell", "sleet", "a red sky", "calm air", "a north-easter", "thin ice"),
    "ships": ("a brig", "two trawlers", "the mail packet", "a collier", "a yawl", "the pilot boat", "a schooner"),
    "repairs": ("the lamp", "the stair rail", "a cracked pane", "the fog bell", "the winch", "the boathouse door"),
}
_EVENTS = {
    "weather": ("came over the reef", "hid the far shore", "lasted until the relief", "turned to rain", "died away"),
    "ships": ("passed to the south", "signalled for a pilot", "lay at anchor off the point", "answered the bell"),
    "repairs": ("was mended with wire", "wants a new bolt", "was oiled and holds", "is loose again", "was painted"),
}
_ENDINGS = ("Nothing else to note.", "The keeper signed.", "Barometer falling.", "Oil for nine days.", "Relief is due.")


def announce(settings: Path, words: str) -> None:
    """Prints ``words`` on standard error if the settings file of a program's folder marks that folder as a drill's.

    Prints nothing if the file cannot be read: the program that opens the folder reports that.
    """
    try:
        is_drill = json.loads(settings.read_text(encoding="utf-8")).get("drill", False)
    except (OSError, ValueError, AttributeError):
        return
    if is_drill:
        print(words, file=sys.stderr)


@dataclass(frozen=True)
class LogEntry:
    """One invented entry of a lighthouse log.

    Attributes:
        person: author of the entry, a lighthouse keeper; the privacy unit of a drill.
    """

    text: str
    label: str
    person: str


def invent_records(count: int, random_source: random.Random) -> list[LogEntry]:
    """Returns ``count`` invented records; their labels alternate, and their authors are drawn by ``random_source``."""
    drill_records = []
    for record_number in range(count):
        label = LABELS[record_number % len(LABELS)]
        first_event, later_event = (
            f"{subject} {event}"
            for subject, event in zip(
                random_source.sample(_SUBJECTS[label], 2), random_source.sample(_EVENTS[label], 2), strict=True
            )
        )
        record_text = (
            f"{random_source.choice(_OPENINGS)} {first_event}; later {later_event}. {random_source.choice(_ENDINGS)}"
        )
        drill_records.append(LogEntry(record_text, label, f"keeper {random_source.randrange(1 + count // 2)}"))
    return drill_records
