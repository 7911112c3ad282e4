"""Whatever stops a party, and whatever old files are put beside newer ones: never two vectors under the same masks.

The order (docs/secagg.md, "What is written before what"): inputs and question journaled, charged, computed, journaled,
noted in the ledger, marked outside the folder, sent.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.pace import slow_but
from tests.doubles.restarts import (
    ME,
    STEPS,
    SUM,
    Federated,
    Hospital,
    Process,
    after_each_step,
    contents,
    vector_in,
)
from undersong_client.consent.people import Person
from undersong_client.operations import runs
from undersong_client.storage import addition, attempts
from undersong_client.storage.attempts import COINS_BYTES
from undersong_client.storage.checkpoints import beside
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import secagg_pb2

pytestmark = pytest.mark.heavy  # hundreds of parties that are killed and begin again

PARTIES = {"shares": 3, "direct": 2}
PARTS = ("journal", "ledger", "keys", "blocks")
IN_THE_ANSWER = ("charged", "computed", "journaled", "noted", "marked")


@pytest.fixture(autouse=True, scope="module")
def every_reply_by_itself() -> Iterator[None]:
    """As long replies are journaled; those of a test are short."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attempts, "LONGEST_REPLY_BYTES", 0)
        yield


def ledger_of(hospital: Hospital) -> Ledger:
    return Ledger.read(hospital.path / "ledger.jsonl")


STARTS = [*itertools.product(PARTIES, ["", *IN_THE_ANSWER, "every reply"])]


@pytest.mark.parametrize(("mode", "step"), slow_but(STARTS, [*STARTS[:7:3], ("direct", "journaled")]))
def test_party_killed_after_any_step_still_sums_with_one_charge(tmp_path: Path, mode: str, step: str) -> None:
    hospital = Hospital(tmp_path)
    processes = [Process(hospital, step)]
    left: set[bytes] = set()

    def ask(request: bytes) -> bytes:
        reply = processes[-1].ask(request)
        if reply is None:  # as a daemon that is started again: the coordinator asks once more
            assert os.WIFSIGNALED(status := processes[-1].wait())
            assert os.WTERMSIG(status) == signal.SIGKILL
            processes.append(Process(hospital))
            reply = processes[-1].ask(request)
        assert reply is not None
        if vector := vector_in(reply):
            left.add(vector)
        if step == "every reply":  # proposed, agreed, opened, dealt, sent, ended
            processes[-1].end()
            processes.append(Process(hospital))
        return reply

    federated = Federated(tmp_path, hospital.identity, PARTIES[mode])
    federated.agree(ask)
    opened = federated.run(lambda _stage, request: ask(request))
    processes[-1].end()
    if step != "every reply":
        assert len(processes) == (2 if step else 1)
    assert ME in opened.survivors
    assert len(left) == 1
    ledger = ledger_of(hospital)
    kinds = [entry["kind"] for entry in ledger.entries()]
    assert kinds == ["genesis", "run", "charge", "sent"]
    assert [charge.query for charge in ledger.charges()] == [SUM]
    # A third start, with every request again: the same bytes, nothing charged, and no other question.
    again = hospital.start()
    for stage in federated.asked:
        assert vector_in(again.answer(federated.asked[stage]).reply) in (None, *left)
    assert "not those with which it was first asked" in refusal(again.answer(federated.opening(1)).reply)
    assert len(ledger_of(hospital).entries()) == 4


def test_an_attempt_that_a_refusal_ended_stays_ended_after_a_restart(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path)
    federated = Federated(tmp_path, hospital.identity, PARTIES["shares"])
    party = hospital.start()
    federated.agree(lambda request: party.answer(request).reply)

    def ask(stage: str, request: bytes) -> bytes:
        if stage != "mask":
            return party.answer(request).reply
        other_terms = secagg_pb2.Request.FromString(wire.Request.FromString(federated.asked["share"]).sum_step.payload)
        other_terms.advertise.threshold = 1
        refused = federated.step(other_terms.SerializeToString())
        assert "a second, different request" in refusal(party.answer(refused).reply)
        reply = hospital.start().answer(request).reply
        assert "a second, different request" in refusal(reply)
        return reply

    assert ME not in federated.run(ask).survivors


def refusal(reply: bytes) -> str:
    message = codec.decode_reply(reply, ME)
    assert message.WhichOneof("body") == "refusal", message
    return message.refusal.problem


# Old files beside newer ones


class History:
    """One sum, with an image of the hospital's disk after every step and what had left by then."""

    def __init__(self, folder: Path, mode: str) -> None:
        (folder / "hospital").mkdir()
        self.hospital = Hospital(folder / "hospital")
        self.federated = Federated(folder, self.hospital.identity, PARTIES[mode])
        self.images: dict[str, Path] = {}
        self.left: dict[str, set[bytes]] = {}
        self._sent: set[bytes] = set()
        self._folder = folder
        party = self.hospital.start()
        self.federated.agree(lambda request: party.answer(request).reply)
        self._look("agreed on")

        def ask(stage: str, request: bytes) -> bytes:
            with after_each_step(self._look):
                reply = party.answer(request).reply
            if vector := vector_in(reply):
                self._sent.add(vector)
            self._look(
                {"advertise": "opened", "share": "dealt", "mask": "sent", "consistency": "agreed", "unmask": "ended"}[
                    stage
                ]
            )
            return reply

        self.federated.run(ask)

    def _look(self, step: str) -> None:
        if step in self.images:
            return
        image = self._folder / f"image {len(self.images)} {step}"
        image.mkdir()
        self.hospital.kept(image)
        self.images[step] = image
        self.left[step] = set(self._sent)

    def mixtures(self) -> list[tuple[str, tuple[str, ...]]]:
        """(how far it came, from where each of PARTS is): every part from that moment or before, alike ones once."""
        steps = list(self.images)
        files = {"journal": ("journal.sqlite", "journal.sqlite-wal"), "ledger": ("ledger.jsonl",)}
        files |= {"keys": ("attempts",), "blocks": ("blocks",)}
        found = []
        for number, present in enumerate(steps):
            choices = []
            for part in PARTS:
                distinct: dict[str, str] = {}
                for step in reversed(steps[: number + 1]):
                    paths = {name: self.images[step] / "home" / name for name in files[part]}
                    distinct.setdefault(contents(paths), step)
                choices.append(list(distinct.values()))
            found += [(present, mixed) for mixed in itertools.product(*choices)]
        return found

    def put_together(self, present: str, mixed: tuple[str, ...]) -> None:
        self.hospital.restore(self.images[present])
        for part, step in zip(PARTS, mixed, strict=True):
            self.hospital.replace(part, self.images[step])


@pytest.fixture(scope="module", params=PARTIES)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp(f"history-{request.param}"), request.param)


@pytest.mark.slow
def test_recorded_history_of_a_sum_has_a_disk_image_after_every_step(history: History) -> None:
    expected = ["agreed on", *STEPS]
    if history.federated.direct:  # only the secrets of pairs are dealt, and the consistency step is the last
        expected.remove("ended")
    assert list(history.images) == expected
    assert [bool(history.left[step]) for step in history.images] == [
        list(history.images).index(step) >= list(history.images).index("sent") for step in history.images
    ]


def attack(history: History, present: str, changed: str) -> tuple[set[bytes], list[str]]:
    """Starts the hospital as its folder is now and asks for the vector in every way; (what left ever, refusals)."""
    hospital, asked, left = history.hospital, history.federated.asked, set(history.left[present])
    words: list[str] = []
    try:
        if changed == "data":
            hospital.change_data()
        if changed.startswith("store key"):
            hospital.change_store_key()
        if changed.endswith("journal lost"):
            hospital.lose_journal()
        party = hospital.start()
    except UndersongError as error:
        return left, [f"does not start: {error.problem}"]
    known = [asked[stage] for stage in asked]
    other = [history.federated.opening(1), history.federated.preparing(), asked.get("share", b""), asked["mask"]]
    requests = [asked["mask"], *known, asked["mask"], *other]
    if changed.endswith("journal lost"):
        requests = [*history.federated.agreement, *requests]
    if changed == "question":
        requests = [*other, *requests]
    for request in requests:
        message = wire.Reply.FromString(party.answer(request).reply)
        if message.WhichOneof("body") == "refusal":
            words.append(message.refusal.problem)
            assert message.refusal.kind != wire.Refusal.INTERNAL
        if vector := vector_in(message.SerializeToString()):
            left.add(vector)
            ledger = ledger_of(hospital)
            assert ledger.attempts(history.federated.manifest.run, SUM) == {0: "sent"}, "an uncharged vector left"
            mark = (beside(hospital.notes) / "mark.json").read_text()
            assert ledger.head in mark, "a vector left before its ledger's head was kept outside the folder"
    return left, words


def check_mixture(history: History, present: str, mixed: tuple[str, ...], changed: str) -> None:
    history.put_together(present, mixed)
    known = ledger_of(history.hospital).attempts(history.federated.manifest.run, SUM)
    left, words = attack(history, present, changed)
    if known and (mixed[0] == "agreed on" or changed.endswith("journal lost")):
        assert left == history.left[present], "an attempt that was charged and is not in the journal was answered"
    assert len(left) <= 1, (
        f"two vectors under the same masks: {present}, {dict(zip(PARTS, mixed, strict=True))}, {words}"
    )


SAMPLE = 4
CHANGED = ("nothing", "data", "question", "store key", "journal lost", "store key, journal lost")


CASES = [*itertools.product(PARTIES, CHANGED, ("sample", "all"))]
KEPT = [case for case in CASES if case[2] == "sample" and case[1] == "nothing"]


@pytest.mark.slow
@pytest.mark.parametrize(("history", "changed", "share"), slow_but(CASES, KEPT), indirect=["history"])
def test_no_mixture_of_old_and_new_party_files_yields_a_second_vector(
    history: History, share: str, changed: str
) -> None:
    """Journal, ledger, attempts' keys and blocks each from any earlier step, the checkpoints as they were left."""
    notes = history.hospital.notes.read_bytes()
    mixtures = history.mixtures()
    if changed.endswith("journal lost"):  # it does not matter which one
        mixtures = list({(present, mixed[1], mixed[3]): (present, mixed) for present, mixed in mixtures}.values())
    assert len(mixtures) > SAMPLE
    if share == "sample":
        # Always among them: the newest ledger beside every older journal and its keys, where it alone has to refuse.
        last = list(history.images)[-1]
        decisive = [(present, mixed) for present, mixed in mixtures if (present, mixed[1], mixed[3]) == (last,) * 3]
        mixtures = decisive + random.Random(f"{changed} {len(mixtures)}").sample(mixtures, SAMPLE)
    for present, mixed in mixtures:
        check_mixture(history, present, mixed, changed)
        history.hospital.notes.write_bytes(notes)


@pytest.mark.parametrize(
    ("without", "refusal"),
    [
        ("no check", "has sent its vector: another one is never computed"),
        ("the charge's check", "has sent another vector"),
    ],
)
def test_either_of_two_checks_alone_stops_a_second_vector(
    history: History, monkeypatch: pytest.MonkeyPatch, without: str, refusal: str
) -> None:
    """A journal of before the vector beside a ledger of after it, with other records: computed anew it would differ."""
    monkeypatch.setattr(addition, "_end_runs", lambda *_: None)  # it would stop this before either check
    notes = history.hospital.notes.read_bytes()
    last = list(history.images)[-1]
    history.put_together(last, ("computed", last, "computed", last))
    if without == "the charge's check":
        charge = Ledger.charge

        def unchecked(*arguments: Any, **options: Any) -> None:
            with contextlib.suppress(PrivacyRefusal):
                charge(*arguments, **options)

        monkeypatch.setattr(Ledger, "charge", unchecked)
    left, words = attack(history, last, "data")
    history.hospital.notes.write_bytes(notes)
    assert any(refusal in word for word in words), words
    assert left == history.left[last]


def test_revocation_stays_after_older_decisions_are_restored_from_backup(tmp_path: Path) -> None:
    (tmp_path / "hospital").mkdir()
    hospital = Hospital(tmp_path / "hospital")
    party = hospital.start()
    federated = Federated(tmp_path, hospital.identity)
    federated.agree(lambda request: party.answer(request).reply)
    federated.run(lambda _stage, request: party.answer(request).reply)
    before = tmp_path / "requests"
    shutil.copytree(hospital.path / "requests", before)
    runs.revoke(hospital.path, federated.manifest.run, Person("Ada"), checkpoints=hospital.marks)
    shutil.rmtree(hospital.path / "requests")
    shutil.copytree(before, hospital.path / "requests")
    party = hospital.start()
    opened = federated.run(lambda _stage, request: party.answer(request).reply, name="votes/2")
    assert ME not in opened.survivors


def test_attempt_stays_unchanged_if_its_answer_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hospital").mkdir()
    hospital = Hospital(tmp_path / "hospital")
    federated = Federated(tmp_path, hospital.identity)
    party = hospital.start()
    federated.agree(lambda request: party.answer(request).reply)

    def full(*_: Any, **__: Any) -> None:
        raise ConfigurationError("the disk is full")

    with monkeypatch.context() as context:
        context.setattr(Outbox, "record", full)
        with pytest.raises(ConfigurationError):
            party.answer(federated.opening())
    party.answer(federated.opening())
    found = hospital.start()._assembled.party._attempts.find(federated.manifest, SUM, 0)
    assert found is not None
    assert len(found.coins) == COINS_BYTES  # as if the first answer had not been given
