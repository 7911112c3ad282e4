"""The harness itself: the code is broken in one way after the other, and each time it says so.

Where a breakage shows in the bytes, the watch over reads of records is switched off, so that the comparison of bytes is
what finds it.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.noninterference import bodies, hospital
from tests.noninterference.hospital import Interference, MakePair
from tests.planted.privacy import MISTAKES
from undersong_client.answering import grid_vectors
from undersong_client.answering.computation import RecordComputation
from undersong_client.answering.party import Party
from undersong_client.consent.approvals import Proposals
from undersong_client.records import cautions
from undersong_client.storage.attempts import Attempts
from undersong_common.errors import ConfigurationError, InternalError, PrivacyRefusal, UndersongError
from undersong_protocol.statistics import LabelHistogram
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.interface import Rows
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import secagg_pb2 as secagg

pytestmark = pytest.mark.slow

Patch = Callable[[pytest.MonkeyPatch], None]
EXAMPLES = 300
BROKEN: dict[str, tuple[partial[Any], str, Patch]] = {}


def broken(
    name: str, body: str = "one_sum", statistic: str = "label_histogram", **options: Any
) -> Callable[[Patch], Patch]:
    """Registers a way to break the code, and what is played to find it."""

    def register(patch: Patch) -> Patch:
        BROKEN[name] = (partial(getattr(bodies, body), **options), statistic, patch)
        return patch

    return register


def wrapped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replaces ``owner.name`` by a function that gets the original first."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: around(original, *given, **named))


def _computation(party: Party) -> RecordComputation:
    assert isinstance(party.computation, RecordComputation)
    return party.computation


def _records(party: Party, manifest: Any) -> Any:
    return _computation(party).records(manifest.labels, manifest.plan.privacy)[0]


def _size(party: Party) -> int:
    return len(_computation(party).data.table)


@broken("delta is compared with the number of units when the run is proposed")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def review(original: Any, self: Party, manifest: Any) -> None:
        if 1000 * manifest.plan.privacy.delta * _records(self, manifest).unit_count >= 0.3:
            raise PrivacyRefusal("privacy.delta is not below 1 / (number of privacy units) at this party")
        original(self, manifest)

    wrapped(monkeypatch, Party, "_review_manifest", review)


@broken("standing consent waits where the records speak against the run")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Any] = []

    def propose(original: Any, self: Party, *given: Any) -> Any:
        tables.append(_computation(self).data)
        return original(self, *given)

    wrapped(monkeypatch, Party, "_answer_propose", propose)

    def reason_to_wait(original: Any, self: Proposals, manifest: Any) -> str:
        found = cautions.of_manifest(manifest, tables[-1])
        return "waits for the approval of a person at this party" if found else str(original(self, manifest))

    wrapped(monkeypatch, Proposals, "reason_to_wait", reason_to_wait)


@broken("the receipt carries the head of the data set's ledger")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(original: Any, self: Party, *given: Any) -> wire.Reply:
        reply: wire.Reply = original(self, *given)
        body = {**json.loads(reply.receipt.body), "ledger_head": self._ledger.head}
        reply.receipt.body = json.dumps(body).encode()
        return reply

    wrapped(monkeypatch, Party, "_close_run", close)


@broken("records are read when a sum is opened, before the charge")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_sum(original: Any, self: Party, message: Any, *given: Any) -> Any:
        _ = _records(self, self._require_manifest(message.manifest_hash)).embeddings
        return original(self, message, *given)

    wrapped(monkeypatch, Party, "_open_sum", open_sum)


@broken("a data set of some size is refused")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(original: Any, self: Party, message: Any, timing: Any) -> Any:
        if secagg.Request.FromString(message.payload).WhichOneof("stage") == "mask" and _size(self) > 5:
            raise PrivacyRefusal("too many records")
        return original(self, message, timing)

    wrapped(monkeypatch, Party, "_sum_step", step)


@broken("an error's words count the records", "conversation")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def answer(original: Any, self: Party, *given: Any, **named: Any) -> Any:
        counted.append(_size(self))
        return original(self, *given, **named)

    wrapped(monkeypatch, Party, "answer", answer)

    def refusal(original: Any, error: UndersongError) -> Any:
        return original(ConfigurationError(f"{error.problem} ({counted[-1]})"))

    wrapped(monkeypatch, codec, "refusal", refusal)


@broken("a row raises for one kind of record", "one_unit", "label_histogram")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(original: Any, self: Any, records: Any, public: Any, memory: Any) -> Rows:
        if (records.labels < 0).any():
            raise InternalError("a record has no label")
        return original(self, records, public, memory)

    wrapped(monkeypatch, LabelHistogram, "rows", rows)


@broken("a row depends on how many records there are", "one_unit", "embedding_sum")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(original: Any, self: Any, records: Any, public: Any, memory: Any) -> Rows:
        found = original(self, records, public, memory)
        sign = 1.0 if len(records) % 2 else -1.0
        return Rows(found.take(np.arange(len(found))) * sign, found.units)

    wrapped(monkeypatch, EmbeddingSum, "rows", rows)


@broken("a row is twice as long as declared, and nothing clips it", "one_unit", "label_histogram")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def contribute(original: Any, statistic: Any, rows: Any, **named: Any) -> Any:
        found = original(statistic, rows, **named)
        return type(found)(found.values * 2)

    wrapped(monkeypatch, grid_vectors, "contribute", contribute)


@broken("units are sub-sampled by their position", "one_unit", "label_histogram", rates=(0.6,))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def subsample(_original: Any, records: Any, rate: float, coins: bytes) -> Any:
        count = records if isinstance(records, int) else records.unit_count
        return np.random.default_rng(list(coins)).random(count) < rate

    wrapped(monkeypatch, grid_vectors, "poisson_subsample", subsample)


@broken("the coins of a subsample follow from the plan", "one_subsample")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def new(original: Any, self: Attempts, manifest: Any, query: str, number: int) -> Any:
        return dataclasses.replace(original(self, manifest, query, number), coins=manifest.hash)

    wrapped(monkeypatch, Attempts, "new", new)


@broken("a vector leaves at once, at no rung")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped(
        monkeypatch,
        Party,
        "answer",
        lambda f, *given, **named: dataclasses.replace(f(*given, **named), first_rung_s=0.0),
    )


@broken("a vector of many records leaves on another ladder")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(original: Any, self: Party, *given: Any, **named: Any) -> Any:
        found = original(self, *given, **named)
        return dataclasses.replace(found, first_rung_s=found.first_rung_s * (1 + (_size(self) > 4)))

    wrapped(monkeypatch, Party, "answer", answer)


@broken("one coin more is drawn where there are records")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(original: Any, self: Party, *given: Any) -> Any:
        purpose = f"attempt/{_size(self) > 2}"
        drawn = hospital.Coins(7)(purpose)
        self._attempts._keys = dataclasses.replace(self._attempts._keys, entropy=lambda _purpose: drawn)
        return original(self, *given)

    wrapped(monkeypatch, Party, "_begin_attempt", begun)


@broken("a vector is computed again after it has left")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(original: Any, self: Party, message: Any, timing: Any) -> Any:
        manifest = self._require_manifest(message.manifest_hash)
        sent = self._ledger.attempts(manifest.run, message.sum).get(message.attempt) == "sent"
        attempt = self._attempts.find(manifest, message.sum, message.attempt)
        if sent and attempt is not None and attempt.inputs is not None:
            self._compute_grid(manifest, message.sum, attempt.inputs, attempt.coins, timing)
        return original(self, message, timing)

    wrapped(monkeypatch, Party, "_sum_step", step)


@broken("another vector leaves for the same attempt")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    left: dict[Party, set[bytes]] = {}

    def answer(original: Any, self: Party, *given: Any, **named: Any) -> Any:
        sent, found = left.setdefault(self, set()), original(self, *given, **named)
        reply = wire.Reply.FromString(found.reply)
        inner = secagg.Reply.FromString(reply.sum_reply.payload)
        if reply.WhichOneof("body") == "sum_reply" and inner.stage == secagg.MASK:
            if inner.body in sent:  # as if masked anew, under other noise
                inner.body = bytes(byte ^ 1 for byte in inner.body)
                reply.sum_reply.payload = inner.SerializeToString()
                return dataclasses.replace(found, reply=reply.SerializeToString())
            sent.add(inner.body)
        return found

    wrapped(monkeypatch, Party, "answer", answer)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# What takes records to be found out by the watch alone.
WATCHED = (
    "records are read when a sum is opened, before the charge",
    "a vector is computed again after it has left",
)


for name, mistake in MISTAKES.items():
    if "H" in mistake.noticed_by:
        broken(name, mistake.body, mistake.statistic)(mistake.change)


@pytest.mark.parametrize("name", list(BROKEN))
def test_noninterference_tests_find_each_planted_leak(
    make_pair: MakePair, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    body, statistic, change = BROKEN[name]
    if name not in WATCHED:
        monkeypatch.setattr(hospital.Read, "__call__", lambda self, what: None)
    change(monkeypatch)
    arguments = () if body.func in (bodies.conversation, bodies.one_subsample) else (statistic,)
    if body.func is bodies.one_unit:
        body = partial(body, good=True)  # what is refused shows no vector

    @settings(bodies.QUIET, max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def played(data: st.DataObject) -> None:
        body(make_pair, data.draw, *arguments)

    with pytest.raises(Interference):
        played()


@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if not mistake.noticed_by])
def test_noninterference_tests_accept_a_harmless_change(
    make_pair: MakePair, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    MISTAKES[name].change(monkeypatch)

    @settings(bodies.QUIET, max_examples=20, phases=[Phase.generate])
    @given(data=st.data())
    def played(data: st.DataObject) -> None:
        bodies.one_aligned_unit(make_pair, data.draw, "label_histogram")

    played()
