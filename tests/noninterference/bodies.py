"""Bodies of property tests, as functions of a pair's maker and of draws. The suite runs few examples, a soak many."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.noninterference import coordinator as hostile
from tests.noninterference.coordinator import Course
from tests.noninterference.hospital import DIMENSION, Interference, MakePair, Pair
from tests.noninterference.play import (
    MOST_FEW,
    OPEN,
    ROOM,
    Draw,
    Play,
    check_neighbours,
    neighbours,
    policies,
    privacies,
    tables,
)
from tests.noninterference.public_examples import malformed, well_formed
from tests.noninterference.questions import LABELS, Asked, facts_of, spoilt
from undersong.auditing.neighbours import aligned_neighbours, aligned_rows
from undersong_common.text.table import Table
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.statistics import Statistic
from undersong_protocol.statistics.embedding_sum import EmbeddingSum

FAR = 1_000.0  # length of a row that must be clipped, in multiples of its bound
RATES = (1.0, 1.0, 1.0, 0.6)  # of a Poisson subsample
QUIET = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


class Enough(Exception):
    """What was to be tried has been tried."""


def play_until(
    enough: Callable[[Counter[str]], bool], most: int, body: Callable[..., Counter[str]], make: MakePair, *names: str
) -> Counter[str]:
    """Plays examples of a body until ``enough`` of what was counted, and ``most`` of them.

    Hypothesis plays the example once more that says it is enough, so the last one does not.
    """
    counted: Counter[str] = Counter()

    @settings(QUIET, max_examples=most, phases=[Phase.generate], report_multiple_bugs=False)
    @given(data=st.data())
    def play(data: st.DataObject) -> None:
        counted.update(body(make, data.draw, *names))
        counted["examples"] += 1
        if counted["examples"] < most and enough(counted):
            raise Enough

    with suppress(Enough):
        play()
    return counted


def conversation(make: MakePair, draw: Draw) -> Counter[str]:
    """Any two data sets and any conversation; what was tried."""
    first, second, allowed, seed = draw(tables()), draw(tables()), draw(policies), draw(st.integers(0, 99))
    with make(first, second, allowed, seed) as pair:
        play = Play(pair, draw)
        play.moves(draw(st.integers(3, 25)))
        return _counted(pair) + play.counted


def one_sum(make: MakePair, draw: Draw, name: str, *, good: bool = False) -> Counter[str]:
    """Any two data sets and one sum of a statistic, its inputs well formed or not."""
    first, second = draw(tables()), draw(tables())
    manifest_for, asked, _ = _asked(draw, name, draw(privacies), good)
    with make(first, second, OPEN, draw(st.integers(0, 99))) as pair:
        course = _through(pair, manifest_for(pair), asked)
        _check_came(pair, name, good)
        return _counted(pair) + Counter({f"{name}: opened": int(course.opened is not None)})


def one_unit(
    make: MakePair, draw: Draw, name: str, *, good: bool = False, rates: Sequence[float] = RATES
) -> Counter[str]:
    """Two data sets that differ in one unit: their masked vectors differ by no more than the plan declares."""
    privacy = draw(privacies)
    first, second = draw(neighbours(privacy.unit))
    privacy = replace(privacy, max_records=ROOM if len(first) > MOST_FEW else privacy.max_records)
    manifest_for, asked, _ = _asked(draw, name, privacy, good, rates)
    with make(first, second, OPEN, draw(st.integers(0, 99))) as pair:
        course = _through(pair, manifest_for(pair), asked)
        _check_came(pair, name, good)
        counted = _counted(pair)
        for number in range(len(pair.pairs)):
            counted[f"{name}: moved by a unit"] += check_neighbours(pair, course, number)
        return counted


def one_aligned_unit(make: MakePair, draw: Draw, name: str) -> Counter[str]:
    """Neighbours whose rows all lie in one coordinate, at the bound or far beyond it, in the unit's own direction.

    What becomes of rows shows whole here: the unit is of two records, of more than count, of records that alternate
    with others', or the opposite of 40 to 199 equal units.
    """
    privacy = draw(privacies.filter(lambda privacy: privacy.unit != "party"))
    length = draw(st.sampled_from([1.0, FAR]))
    pairs = aligned_neighbours(LABELS, privacy)
    few, crowds = ([pair for pair in pairs if (len(pair[0]) > MOST_FEW) == many] for many in (False, True))
    whole, *without = draw(st.sampled_from(few) | st.sampled_from(crowds))
    privacy = replace(privacy, max_records=ROOM)
    manifest_for, asked, statistic = _asked(draw, name, privacy, True, (1.0,))
    with (
        make(whole, without[0], OPEN, draw(st.integers(0, 99))) as pair,
        patch.object(type(statistic), "rows", lambda self, records, *_: aligned_rows(self, records, length)),
    ):
        course = _through(pair, manifest_for(pair), asked)
        _check_came(pair, name, good=True)
        return _counted(pair) + Counter({f"{name}: moved by a unit": check_neighbours(pair, course)})


def one_subsample(make: MakePair, draw: Draw) -> Counter[str]:
    """Two copies that differ in the secret coins of their subsamples alone: equal answers, different vectors.

    Two subsamples of these records are the same with a chance of 0.58 ** 60 = 6e-15.
    """
    records = Table(tuple(f"note {draw(st.integers(0, 999))} of patient {number}" for number in range(60)), None, None)
    privacy, rate = Privacy(2.0, 1e-4, max_records=100), draw(st.sampled_from([0.3, 0.5, 0.7]))
    plan = hostile.plan((EmbeddingSum(DIMENSION, 0),), privacy, draw(st.integers(1, 4)), rate)
    with make(records, records, OPEN, draw(st.integers(0, 99))) as pair:
        pair.copies[1].coins.subsamples = "other coins"
        _through(pair, hostile.manifest_of(plan, pair.identity), Asked([], []))
        _check_came(pair, "embedding_sum", good=True)
        if not pair.differed:
            raise Interference("other coins give the same vector: they do not decide who is in the subsample")
        return _counted(pair)


def _asked(
    draw: Draw, name: str, privacy: Privacy, good: bool, rates: Sequence[float] = RATES
) -> tuple[Callable[[Pair], Manifest], Asked, Statistic]:
    parties, rate = draw(st.integers(1, 4)), draw(st.sampled_from(rates))
    labels = draw(st.sampled_from([LABELS, LABELS, (), (*LABELS, "x", "y", "z"), LABELS[:1]]))
    kind = "well formed" if good else draw(st.sampled_from(["well formed", "malformed", "spoilt"]))
    example = draw((malformed if kind == "malformed" else well_formed)(name, facts_of(labels)))
    asked = draw(spoilt(Asked.of(example))) if kind == "spoilt" else Asked.of(example)
    plan = hostile.plan((example.statistic,), privacy, parties, rate)
    return lambda pair: hostile.manifest_of(plan, pair.identity, labels=labels), asked, example.statistic


def _check_came(pair: Pair, name: str, good: bool) -> None:
    if good and pair.vectors != 1:
        raise Interference(f"{name}: no vector came, although the inputs are well formed")


def _through(pair: Pair, manifest: Manifest, asked: Asked) -> Course:
    """A run with its one sum, from the proposal to the receipt."""
    signature = pair.ask(hostile.proposal(manifest)).signature.signature
    pair.ask(hostile.agreement(manifest, signature))
    course = Course(manifest, manifest.plan.sums[0].name, 0, asked)
    course.take(pair.ask(course.opening()))
    while course.payload():
        step = course.step()
        vector = course.stage == "mask"
        course.take(pair.ask(step, course.slot))
        if vector:
            pair.ask(step, course.slot)  # the same bytes once more, and nothing is computed for them
    pair.ask(hostile.closing(manifest))
    return course


def _counted(pair: Pair) -> Counter[str]:
    return Counter({"messages": pair.messages, "masked vectors": pair.vectors, "different vectors": pair.differed})
