"""Whole conversations, drawn by hypothesis: what the coordinator sends and what people do in between."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.noninterference import coordinator as hostile
from tests.noninterference.coordinator import Course, request
from tests.noninterference.hospital import NAME, Interference, Pair
from tests.noninterference.public_examples import Example, well_formed
from tests.noninterference.questions import LABELS, NAMES, Asked, facts_of, spoilt
from undersong.auditing.neighbours import CROWDS, crowd
from undersong_client.consent import policy, rules
from undersong_common.text.table import Table
from undersong_protocol import statistics
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.secagg import ring
from undersong_protocol.statistics.examples import WORDS
from undersong_protocol.wire.messages import federation_pb2 as wire

Draw = Callable[[st.SearchStrategy[Any]], Any]

TEXTS = (
    *(f"note {number}" for number in range(6)),
    *(" ".join(WORDS[number : number + 4]) for number in range(0, len(WORDS), 2)),
    "PAIN, Pain; pain. a chest -- walk",
    "Größe 12 größe NOTE",
    "\ud800 half a character, and \0 none",
    "\u202eright to left \U0001f3e5",
    "0",
    "word " * 40,
)
ORDINARY = tuple(" ".join(WORDS[number : number + 3]) for number in range(len(WORDS) - 2))
RECORD_LABELS = (*LABELS, "elsewhere", "Good", "\u202eright to left")
MOST_FEW = 12  # records of a small data set
ROOM = 400  # largest number of records where there is a crowd
ONE_CROWD_IN = 6  # neighbours; the copies of a crowd take longer
USERS = ("1", "2", "3", "ÿ")


@st.composite
def tables(draw: st.DrawFn, columns: tuple[bool, bool] | None = None) -> Table:
    """Any records that `data add` accepts: none, few or some, with or without columns."""
    has_labels, has_users = columns or (draw(st.booleans()), draw(st.booleans()))
    count = draw(st.sampled_from([0, 1, 2, 5, 11]))
    rows = [
        (draw(st.sampled_from(TEXTS)), draw(st.sampled_from(RECORD_LABELS)), draw(st.sampled_from(USERS)))
        for _ in range(count)
    ]
    texts, labels, users = (tuple(column) for column in zip(*rows, strict=True)) if rows else ((), (), ())
    return Table(texts, labels if has_labels else None, users if has_users else None, _columns(texts))


def _columns(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Columns beside the texts, of names and values that examples of statistics ask for; some values are missing."""
    return {
        name: tuple("" if len(text) % 4 == place else WORDS[len(text) % len(WORDS)] for text in texts)
        for place, name in enumerate(WORDS[:6])
    }


@st.composite
def _one_odd(draw: st.DrawFn) -> Table:
    """Ordinary records and one of a kind: what fails, or counts, for that kind of record alone shows best here."""
    count = draw(st.sampled_from([3, 6, 11]))
    rows = [
        (ORDINARY[number % len(ORDINARY)], LABELS[number % len(LABELS)], f"u{number // 2}") for number in range(count)
    ]
    at = draw(st.integers(0, count))
    rows.insert(at, (draw(st.sampled_from(TEXTS)), draw(st.sampled_from(RECORD_LABELS)), "odd"))
    texts, labels, users = zip(*rows, strict=True)
    return Table(texts, labels, users, _columns(texts))


@st.composite
def _crowds(draw: st.DrawFn) -> Table:
    """Many nearly equal units and one opposite: what begins at some number of units shows here."""
    texts = draw(st.sampled_from(ORDINARY)), draw(st.sampled_from(TEXTS))
    labels = draw(st.permutations(LABELS))
    equal, odd = (
        Table((text,), (label,), (user,), _columns((text,)))
        for text, label, user in zip(texts, labels, "eo", strict=False)
    )
    whole, _ = crowd(equal, odd, draw(st.sampled_from(CROWDS)))
    assert whole.users is not None
    return replace(whole, users=tuple("odd" if user == "opposite" else user for user in whole.users))


@st.composite
def neighbours(draw: st.DrawFn, unit: str) -> tuple[Table, Table]:
    """A data set, and the same without one of its units; sometimes that one is the only odd one."""
    few = st.one_of(_one_odd(), tables((True, True)).filter(len))
    whole = draw(_crowds() if draw(st.integers(0, ONE_CROWD_IN - 1)) == 0 else few)
    assert whole.users is not None
    odd = "odd" in whole.users
    if unit == "party":
        left: list[int] = []
    elif unit == "sample":
        gone = whole.users.index("odd") if odd else draw(st.integers(0, len(whole) - 1))
        left = [row for row in range(len(whole)) if row != gone]
    else:
        user = "odd" if odd else draw(st.sampled_from(whole.users))
        left = [row for row in range(len(whole)) if whole.users[row] != user]
    return whole, whole.take(left)


privacies = st.sampled_from(
    [
        Privacy(2.0, 1e-4, max_records=20),
        Privacy(1.0, 1e-3, "user", 3, max_records=20),
        Privacy(4.0, 1e-4, "user", 2, "sum", max_records=9),
        Privacy(1.0, 1e-4, "party", 4, max_records=20),
        Privacy(float("inf"), 1e-4, max_records=20),
    ]
)

OPEN = policy.HospitalPolicy(
    statistics=tuple(statistics.names()),
    minimum_parties=1,
    run_epsilon=float("inf"),
    total_epsilon=float("inf"),
    total_delta=1e-3,
    approval="standing",
)
"""Allows every run of the harness, infinite epsilon included."""

_narrow = st.builds(
    lambda approval, declared, units, epsilon: policy.HospitalPolicy(
        statistics=tuple(statistics.names()),
        units=units,
        minimum_parties=1,
        run_epsilon=epsilon,
        total_epsilon=max(epsilon, 40.0),
        total_delta=1e-3,
        approval=approval,
        declared_units=declared,
    ),
    st.sampled_from(["each", "standing", "standing", "standing"]),
    st.sampled_from([0, 0, 0, 9_000, 900]),
    st.sampled_from([rules.UNITS, rules.UNITS, ("user",)]),
    st.sampled_from([40.0, float("inf"), 3.0, float("inf")]),
)

policies = st.one_of(st.just(OPEN), st.just(OPEN), _narrow, st.just(replace(OPEN, approval="each")))


class Play:
    """One conversation with a pair. Raises Interference.

    Attributes:
        counted: what was tried and what came back, for the report of a soak.
    """

    def __init__(self, pair: Pair, draw: Draw) -> None:
        self.pair = pair
        self._draw = draw
        self._manifests: list[Manifest] = []
        self._examples: dict[bytes, dict[str, Example]] = {}
        self._signed: dict[bytes, bytes] = {}
        self._agreed: list[Manifest] = []
        self._courses: list[Course] = []
        self._sent: list[tuple[bytes, tuple[str, str, int] | None]] = []
        self.counted: Counter[str] = Counter()

    def moves(self, count: int) -> None:
        """So many steps, most of them further into a run than chance alone would go."""
        steps = [getattr(self, name) for name in MOVES]
        for _ in range(count):
            self._draw(st.sampled_from(steps))()

    def ask(self, message: bytes, slot: tuple[str, str, int] | None = None) -> wire.Reply:
        self._sent.append((message, slot))
        reply = self.pair.ask(message, slot)
        self.counted[f"{wire.Reply.WhichOneof(reply, 'body')}"] += 1
        return reply

    # What the coordinator says

    def introduce(self) -> None:
        self.ask(request(introduce=wire.Introduce()))

    def propose(self) -> None:
        """A new run, or the same once more, or another plan under a known name."""
        draw = self._draw
        if self._manifests and draw(st.integers(0, 3)) == 0:
            self.sign(draw(st.sampled_from(self._manifests)))
            return
        parties = draw(st.integers(1, 4))
        rate = draw(st.sampled_from([1.0, 1.0, 1.0, 0.6]))
        labels = draw(st.sampled_from([LABELS, LABELS, LABELS[:1], (), (*LABELS, "x", "y", "z"), ("bad", "good")]))
        facts = facts_of(labels)
        examples = [draw(well_formed(draw(st.sampled_from(NAMES)), facts)) for _ in range(draw(st.integers(1, 2)))]
        plan = hostile.plan(tuple(example.statistic for example in examples), draw(privacies), parties, rate)
        run = draw(st.sampled_from(["run", "run", "another run"]))
        name = draw(st.sampled_from([*[NAME] * 19, "somebody else"]))
        manifest = hostile.manifest_of(plan, self.pair.identity, run=run, labels=labels, name=name)
        self._examples[manifest.hash] = {f"sum {number}": example for number, example in enumerate(examples)}
        self.sign(manifest)

    def sign(self, manifest: Manifest) -> None:
        reply = self.ask(hostile.proposal(manifest))
        if manifest not in self._manifests:
            self._manifests.append(manifest)
        if reply.WhichOneof("body") == "signature":
            self._signed[manifest.hash] = reply.signature.signature

    def edit(self) -> None:
        """A proposal with one figure or name of its plan replaced."""
        if not self._manifests:
            return
        manifest = self._draw(st.sampled_from(self._manifests))
        path, values = self._draw(st.sampled_from(EDITS))
        self.ask(hostile.edited(manifest, path, self._draw(st.sampled_from(values))))

    def agree(self) -> None:
        signed = [each for each in self._manifests if each.hash in self._signed]
        if not signed:
            return
        manifest = self._draw(st.sampled_from(signed))
        signature = self._signed[manifest.hash]
        if self._draw(st.integers(0, 9)) == 0:
            signature = self._draw(st.sampled_from([b"", bytes(64), signature[::-1]]))
        reply = self.ask(hostile.agreement(manifest, signature))
        if reply.WhichOneof("body") == "agreed" and manifest not in self._agreed:
            self._agreed.append(manifest)

    def begin(self) -> None:
        """A run as far as its first sum, so that what comes later has something to meet."""
        self.propose()
        manifest = self._manifests[-1]
        if manifest.hash not in self._signed and self._draw(st.integers(0, 3)):
            self.pair.each(lambda copy: copy.decide(-1, "approved", ""))
            self.sign(manifest)
        self.agree()
        self.whole()

    def begin_void(self) -> None:
        """An attempt that ends before, or just after, its vector came, and the next one with its certificate."""
        course = self._course()
        if course is None:
            return
        course.take(self.ask(course.opening()))
        for _ in range(self._draw(st.integers(0, 2))):
            self._advance(course)
        self.void(course)

    def whole(self) -> None:
        """One attempt at one sum, with all its stages."""
        course = self._course()
        if course is None:
            return
        if self._draw(st.integers(0, 3)) == 0:
            course.take(self.ask(course.preparation()))
            self.ask(course.opening())
        else:
            course.take(self.ask(course.opening()))
        for _ in range(self._draw(st.sampled_from([6, 6, 6, 1, 2, 3]))):
            self._advance(course)

    def open(self) -> None:
        course = self._course()
        if course is not None:
            course.take(self.ask(course.opening()))

    def prepare(self) -> None:
        course = self._course()
        if course is not None:
            course.take(self.ask(course.preparation()))

    def name_inputs(self) -> None:
        """The inputs of an attempt that was begun: again, late, or other ones."""
        if self._courses:
            course = self._draw(st.sampled_from(self._courses))
            if self._draw(st.booleans()):
                course.asked = self._asked(course.manifest, course.name)
            self.ask(course.opening())

    def advance(self) -> None:
        if self._courses:
            self._advance(self._draw(st.sampled_from(self._courses)))

    def tamper(self) -> None:
        """A step with other bytes: spoilt ones, those of another stage or attempt, or none."""
        if not self._courses:
            return
        course = self._draw(st.sampled_from(self._courses))
        known = [payload for each in self._courses for payload in (*each.sent, each.payload()) if payload]
        payload = self._draw(st.sampled_from(known)) if known and self._draw(st.booleans()) else course.payload()
        if payload and self._draw(st.booleans()):
            at, bit = self._draw(st.integers(0, len(payload) - 1)), self._draw(st.integers(0, 7))
            changed = bytearray(payload)
            changed[at] ^= 1 << bit
            payload = bytes(changed)
        self.ask(course.step(payload), course.slot)

    def void(self, course: Course | None = None) -> None:
        """The attempt is called void; a next one begins with the certificate."""
        if not self._courses:
            return
        course = course or self._draw(st.sampled_from(self._courses))
        reply = self.ask(course.voiding())
        statement = reply.void_statement.statement if reply.WhichOneof("body") == "void_statement" else None
        certificate = course.certificate(statement)
        if self._draw(st.integers(0, 4)) == 0:
            certificate.attempt = self._draw(st.integers(0, 5))
        following = Course(course.manifest, course.name, course.number + 1, course.asked)
        self._courses.append(following)
        following.take(self.ask(following.opening(voids=[certificate])))
        if self._draw(st.booleans()):
            for _ in range(3):
                self._advance(following)

    def close(self) -> None:
        """Says of a run, agreed on or not, that it has ended or has failed."""
        if self._manifests:
            says = self._draw(st.sampled_from([hostile.closing, hostile.suspending]))
            self.ask(says(self._draw(st.sampled_from(self._manifests))))

    def garbage(self) -> None:
        if self._sent and self._draw(st.booleans()):
            message, slot = self._draw(st.sampled_from(self._sent))
            if message:
                at = self._draw(st.integers(0, len(message) - 1))
                self.ask(message[:at] + self._draw(st.binary(max_size=4)) + message[at + 1 :], slot)
            return
        self.ask(self._draw(st.binary(max_size=60)))

    def resend(self) -> None:
        """Word for word what was said before."""
        if self._sent:
            self.ask(*self._draw(st.sampled_from(self._sent)))

    # What happens at the hospital, alike at both copies but for what becomes of a file

    def restart(self) -> None:
        self.pair.each(lambda copy: copy.restart())

    def decide(self) -> None:
        number = self._draw(st.integers(0, 3))
        decision = self._draw(st.sampled_from(["approved", "approved", "approved", "rejected", "revoked"]))
        self.pair.each(lambda copy: copy.decide(number, decision, "said by a person"))

    def change_policy(self) -> None:
        wanted = self._draw(policies)
        self.pair.each(lambda copy: copy.allow(wanted))

    def spoil_a_file(self) -> None:
        """The data file of one copy is changed, broken or gone."""
        which, how = self._draw(st.integers(0, 1)), self._draw(st.integers(0, 2))
        self.pair.copies[which].spoil(how)

    # Parts

    def _course(self) -> Course | None:
        """A new attempt at a sum of an agreed run."""
        if not self._agreed:
            return None
        manifest = self._draw(st.sampled_from(self._agreed))
        planned = self._draw(st.sampled_from(manifest.plan.sums))
        before = [each for each in self._courses if each.manifest is manifest and each.name == planned.name]
        following = max((each.number + 1 for each in before if each.begun), default=0)
        number = self._draw(st.sampled_from([following, following, following, following, 0, 7]))
        asked = before[0].asked if before and self._draw(st.integers(0, 3)) else self._asked(manifest, planned.name)
        course = Course(manifest, planned.name, number, asked)
        self._courses.append(course)
        return course

    def _asked(self, manifest: Manifest, name: str) -> Asked:
        asked = Asked.of(self._examples[manifest.hash][name])
        if self._draw(st.integers(0, 2)) == 0:
            self.counted["spoilt inputs"] += 1
            asked = self._draw(spoilt(asked))
        return asked

    def _advance(self, course: Course) -> None:
        if course.over or not course.payload():
            return
        self.counted[f"stage {course.stage}"] += 1
        course.take(self.ask(course.step(), course.slot))
        self.counted["opened sums"] += course.opened is not None


MOVES = (
    *("begin",) * 5,
    *("begin_void",) * 2,
    *("whole",) * 4,
    *("advance",) * 4,
    *("open", "prepare", "name_inputs", "tamper", "tamper", "void", "void", "resend", "resend"),
    *("introduce", "propose", "propose", "edit", "agree", "close", "garbage"),
    *("restart", "decide", "decide", "change_policy", "spoil_a_file"),
)

_FIGURES: Sequence[Any] = (0, -1, 1, 2, 1e308, 1e-300, 0.5, 2**40, None, True, "1", [], {})
EDITS: Sequence[tuple[tuple[str | int, ...], Sequence[Any]]] = (
    *((("plan", "privacy", name), _FIGURES) for name in ("epsilon", "delta", "max_per_unit", "max_records")),
    (("plan", "privacy", "unit"), ("sample", "user", "party", "note", None, ["user"])),
    (("plan", "privacy", "contribution"), ("mean", "sum", "all", 3)),
    *(
        (("plan", "quorum", name), _FIGURES)
        for name in ("parties", "threshold", "tolerated_dropouts", "colluders", "spare_attempts", "post_quantum")
    ),
    *(
        (("plan", "sums", 0, name), _FIGURES)
        for name in (
            *("dimension", "l1", "l2", "linf", "scale", "sigma_integer", "modulus_bits", "sampling_rate"),
            *("parameters", "name", "first_rung_s"),
        )
    ),
    (("plan", "sums", 0, "statistic"), (*statistics.names(), "unknown", None, 3)),
    (("plan", "sums", 0, "source"), ("", "00" * 32, "x" * 64, ["00"], {"a": 1}, 3, None)),
    (("plan", "sums", 0, "law"), ("gaussian", "laplace", "none", None)),
    (("task", "labels"), (["good", ["bad"]], "good", ["good", "good"], [1], {"good": 1}, None, ["elsewhere"], [""])),
    (("task",), ({}, [], None, "task")),
    (("run",), ("", "another run", "x" * 300, "\u202e", 3)),
    (("embedder",), ("", "00" * 32, None)),
    (("roster",), ([], None, [{"name": NAME, "identity": "00" * 32}])),
    (("version",), (1, 2, 3, None)),
)


def check_neighbours(pair: Pair, course: Course, number: int = 0) -> int:
    """Opens the difference of two masked vectors under the same coins; the largest share of a bound it reaches.

    Raises Interference where the vectors are further apart than the plan declares for one unit.
    """
    one, two = pair.pairs[number]
    planned = course.manifest.plan[course.name]
    words = [ring.unpack(body, planned.modulus_bits, planned.dimension) for body in (one, two)]
    difference = ring.to_signed(words[0] - words[1], planned.modulus_bits).astype(object)
    norms = {
        "L1": (sum(abs(int(each)) for each in difference), planned.l1),
        "L2": (sum(int(each) ** 2 for each in difference) ** 0.5, planned.l2),
        "Linf": (max((abs(int(each)) for each in difference), default=0), planned.linf),
    }
    for norm, (found, bound) in norms.items():
        if found > bound * planned.scale * (1 + 2.0**-30):
            raise Interference(
                f"{course.name} ({planned.statistic}): one {course.manifest.plan.privacy.unit} moves the vector by"
                f" {norm} {found / planned.scale:g}, declared {bound:g}"
            )
    return int(any(difference))
