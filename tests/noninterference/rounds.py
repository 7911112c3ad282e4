"""Many examples of one body from one seed, for the audit and the soak."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.noninterference import bodies
from tests.noninterference.hospital import Interference, MakePair, pairs
from tests.noninterference.play import Draw
from tests.noninterference.questions import NAMES


@dataclass(frozen=True)
class Played:
    """Result of conversations of one kind between a hostile coordinator and two copies of a party.

    Attributes:
        body: name of that kind.
        examples, messages, vectors: pairs of parties, messages to both, and masked vectors that both sent.
        found: the first finding in words; "" if nothing depends on the records.
    """

    body: str
    examples: int
    messages: int
    vectors: int
    found: str


Body = Callable[[MakePair, Draw], Counter[str]]
CONVERSATION = "conversations"
SUBSAMPLE = "one subsample"
LONGEST_FINDING = 600  # characters; a difference quotes both replies


def bodies_of(asked: Sequence[str]) -> list[str]:
    """Bodies that :func:`play` plays for a plan with sums of these statistics, by name."""
    names = [name for name in dict.fromkeys(asked) if name in NAMES]
    return [
        CONVERSATION,
        SUBSAMPLE,
        *(f"{kind} of {name}" for name in names for kind in ("one sum", "one unit", "one aligned unit")),
    ]


def play(body: str, *, examples: int, seed: int) -> Played:
    """Plays one of :func:`bodies_of`, in a process whose parties' records nobody else reads meanwhile.

    Raises nothing for what it finds.
    """
    chosen = bodies.conversation if body == CONVERSATION else all_bodies()[body]
    counted: Counter[str] = Counter()

    def counting(make: MakePair, draw: Draw) -> Counter[str]:
        counted["examples"] += 1
        found = chosen(make, draw)
        counted.update(found)
        return found

    found = ""
    with pairs() as make, _quiet():
        try:
            tried(make, counting, seed, examples=examples)
        except Interference as error:
            found = str(error)[:LONGEST_FINDING]
        except Exception as error:  # noqa: BLE001 - a party must not raise, whatever it is asked
            found = f"an answer ends with {type(error).__name__}"
    return Played(body, counted["examples"], counted["messages"], counted["masked vectors"], found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Refusals are what a hostile coordinator gets; nobody wants to read them all."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def all_bodies(names: Sequence[str] = NAMES) -> dict[str, Body]:
    """Conversations as often as all statistics together. ``names``: the statistics' (questions.NAMES)."""
    found: dict[str, Body] = {SUBSAMPLE: bodies.one_subsample}
    for name in names:
        found[f"conversation before {name}"] = bodies.conversation
        found[f"one sum of {name}"] = partial(bodies.one_sum, name=name)
        found[f"one unit of {name}"] = partial(bodies.one_unit, name=name)
        found[f"one aligned unit of {name}"] = partial(bodies.one_aligned_unit, name=name)
    return found


def tried(make: MakePair, body: Body, number: int, *, examples: int, shrink: bool = False) -> Counter[str]:
    """So many examples from a seed, and what was counted. Raises what was found, shrunk where asked for."""
    counted: Counter[str] = Counter()
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]

    @seed(number)
    @settings(
        deadline=None,
        database=None,
        max_examples=examples,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(data=st.data())
    def play(data: st.DataObject) -> None:
        counted["examples"] += 1
        counted.update(body(make, data.draw))

    play()
    return counted
