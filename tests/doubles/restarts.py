"""One hospital's folder in a private sum of two or three parties, stopped at any step and put together from old parts.

The hospital is the real one: folder, sealed records, ledger with its checkpoints, encrypted journal, outbox. The other
parties and the coordinator stay in the test's process.
"""

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.doubles.authority import Authority
from tests.doubles.parties import embed, make_manifest, make_party, make_tables
from tests.doubles.party_home import HashedEmbedder, joined, write_notes
from undersong_client import keys
from undersong_client.answering import party as party_module
from undersong_client.answering.assemble import assemble
from undersong_client.answering.computation import HospitalComputation
from undersong_client.answering.journaled import JournaledParty
from undersong_client.cli.options import checkpoints_folder
from undersong_client.consent import policy
from undersong_client.home import Declared, PartyHome
from undersong_client.keys import from_system
from undersong_client.storage import checkpoints, store
from undersong_client.storage.addition import Addition, AdditionOptions
from undersong_common.privacy import ledger as ledger_module
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.parameters import Entropy, defaults
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import secagg_pb2
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, block_id, encode_embeddings

LABELS = ("good", "bad")
ME = "p0"
SUM = "votes/1"
STEPS = ("opened", "dealt", "charged", "computed", "journaled", "noted", "marked", "sent", "agreed", "ended")
"""After which the hospital's disk is looked at, in order; in direct mode nothing is dealt and nothing agreed on."""


class Hospital:
    """The folder of party ``p0``, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ME
        self.notes = folder / f"{ME}.jsonl"
        self.folder = folder
        self.entropy: Callable[[str], Entropy] = from_system
        self.now = 5.0
        with patch.dict(os.environ, XDG_STATE_HOME=str(folder / "state")):
            self.marks = checkpoints_folder(folder / "home")
            joined(folder, Authority(), ME, notes=write_notes(self.notes, labels=LABELS), approval="standing")

    def change_data(self) -> None:
        """Another version of the data set is added."""
        write_notes(self.notes, labels=LABELS, start=3)
        self.add_data()

    def change_store_key(self) -> None:
        """Another store key lies in the folder, and the same data set is sealed under it; journal and ledger stay."""
        (self.path / "keys" / "store.key").write_text(os.urandom(32).hex())
        self.add_data()

    def lose_journal(self) -> None:
        """The journal is gone, with the keys of the attempts in it."""
        store.close(self.path / "journal.sqlite")
        for path in [*self.path.glob("journal.sqlite*"), *self.path.glob("attempts/*")]:
            path.unlink()

    def add_data(self) -> None:
        """The data set is added anew, as it is now."""
        home = PartyHome(self.path)
        declared = Declared(str(self.notes), "text", "label", "patient")
        options = AdditionOptions(new_version=True)
        Addition(home, declared, policy.read(home), self.marks, 1.0, options=options).run()

    @property
    def identity(self) -> bytes:
        return keys.identity(PartyHome(self.path)).public_key().public_bytes_raw()

    def start(self) -> JournaledParty:
        """As the daemon starts it; raises what keeps it from starting."""
        store.close(self.path / "journal.sqlite")
        home = PartyHome(self.path)
        assembled = assemble(
            home,
            checkpoints=self.marks,
            clock=lambda: self.now,
            entropy=self.entropy,
            embedder=HashedEmbedder(),
            computation=HospitalComputation(home, HashedEmbedder()),
        )
        return JournaledParty(home, assembled, clock=lambda: self.now)

    def kept(self, into: Path) -> None:
        """Copies what a sudden end would leave on the disk."""
        shutil.copytree(self.path, into / "home")
        shutil.copytree(self.marks, into / "marks")
        shutil.copy(checkpoints.beside(self.notes) / "mark.json", into / "mark.json")

    def restore(self, image: Path) -> None:
        """Puts everything back as :meth:`kept` found it."""
        store.close(self.path / "journal.sqlite")
        for place, name in ((self.path, "home"), (self.marks, "marks")):
            shutil.rmtree(place)
            shutil.copytree(image / name, place)
        shutil.copy(image / "mark.json", checkpoints.beside(self.notes) / "mark.json")

    def replace(self, part: str, image: Path) -> None:
        """Puts one part back: journal, ledger, keys (of attempts), blocks."""
        names = {
            "journal": ["journal.sqlite", "journal.sqlite-wal"],
            "ledger": ["ledger.jsonl"],
            "keys": ["attempts"],
            "blocks": ["blocks"],
        }[part]
        for name in names:
            here, there = self.path / name, image / "home" / name
            if here.is_dir():
                shutil.rmtree(here)
            here.unlink(missing_ok=True)
            if there.is_dir():
                shutil.copytree(there, here)
            elif there.exists():
                shutil.copy(there, here)


class Federated:
    """The sum in which the hospital takes part, and a coordinator that remembers everything it asked it.

    Attributes:
        asked: the requests to the hospital by stage, as they were first sent; "open" names the question.
        agreement: the two requests by which everybody agreed on the manifest.
    """

    def __init__(self, folder: Path, identity: bytes, parties: int = 3, run: str = "a run", **quorum: Any) -> None:
        self.blocks = MemoryBlocks()
        names = [f"p{number}" for number in range(1, parties)]
        tables = make_tables(parties, 12, LABELS)
        self.others = {name: make_party(folder, name, tables[name], blocks=self.blocks) for name in names}
        threshold, dropouts, colluders = defaults(parties)
        plan = plan_sums(
            [SumRequest(f"votes/{t}", TopQVotes(q=2, candidates=6, labels=2)) for t in (1, 2)],
            Privacy(2.0, 1e-5, max_records=100),
            Quorum(parties, threshold, dropouts, colluders, **quorum),
        )
        hospital: Any = type("Known", (), {"public_identity": identity})()
        self.manifest = make_manifest(plan, {ME: hospital, **self.others}, LABELS, run)
        self.parameters = self.manifest.sum_parameters(SUM, 0)
        self.asked: dict[str, bytes] = {}
        self.agreement: list[bytes] = []

    @property
    def direct(self) -> bool:
        return self.parameters.direct

    def inputs(self, which: int = 0) -> tuple[list[Input], list[bytes]]:
        """(inputs, blocks) of one of two questions."""
        data = encode_embeddings(embed([f"candidate {which} {n}" for n in range(6)]), np.arange(6) % 2)
        self.blocks.add(data)
        return [Input("candidates", (Segment(block_id(data)),))], [data]

    def agree(self, ask: Callable[[bytes], bytes]) -> None:
        proposal = _request(propose=wire.ProposeManifest(manifest=self.manifest.to_bytes()))
        everyone = {ME: ask, **{name: party.handle for name, party in self.others.items()}}
        signatures = {
            name: codec.decode_reply(asked(proposal), name).signature.signature for name, asked in everyone.items()
        }
        agreement = _request(agree=wire.AgreeManifest(manifest=self.manifest.to_bytes(), signatures=signatures))
        self.agreement = [proposal, agreement]
        for name, asked in everyone.items():
            assert codec.decode_reply(asked(agreement), name).WhichOneof("body") == "agreed"

    def opening(
        self, which: int = 0, attempt: int = 0, name: str = SUM, voids: Sequence[wire.VoidCertificate] = ()
    ) -> bytes:
        inputs, blocks = self.inputs(which)
        from undersong_protocol.secagg.messages import advertise_request

        return _request(
            open_sum=wire.OpenSum(
                manifest_hash=self.manifest.hash,
                sum=name,
                attempt=attempt,
                inputs=[given.to_wire() for given in inputs],
                blocks=blocks,
                payload=advertise_request(self.manifest.sum_parameters(name, attempt)),
                voids=voids,
            )
        )

    def preparing(self, attempt: int = 0) -> bytes:
        from undersong_protocol.secagg.messages import advertise_request

        payload = advertise_request(self.manifest.sum_parameters(SUM, attempt))
        return _request(
            prepare_sum=wire.PrepareSum(manifest_hash=self.manifest.hash, sum=SUM, attempt=attempt, payload=payload)
        )

    def step(self, payload: bytes, attempt: int = 0, name: str = SUM) -> bytes:
        message = wire.SumStep(manifest_hash=self.manifest.hash, sum=name, attempt=attempt, payload=payload)
        return _request(sum_step=message)

    def run(
        self,
        ask: Callable[[str, bytes], bytes | None],
        attempt: int = 0,
        name: str = SUM,
        voids: Sequence[wire.VoidCertificate] = (),
    ) -> secagg.UnmaskedSum:
        """The whole sum; ``ask(stage, request)`` is the hospital's reply, None where it stays away."""
        from undersong_protocol.wire.public import question

        parameters = self.manifest.sum_parameters(name, attempt)
        machine = secagg.private_sum(parameters, lambda: question(self.inputs()[0]))
        requests = next(machine)
        while True:
            stage = secagg_pb2.Request.FromString(next(iter(requests.values()))).WhichOneof("stage") or ""
            replies = {}
            for member, payload in requests.items():
                if stage == "advertise":
                    request = self.opening(0, attempt, name, voids)
                else:
                    request = self.step(payload, attempt, name)
                if member == ME:
                    self.asked[stage] = request
                    reply = ask(stage, request)
                else:
                    reply = self.others[member].handle(request)
                if reply is None:
                    continue
                decoded = codec.decode_reply(reply, member)
                if decoded.WhichOneof("body") == "sum_reply":
                    replies[member] = decoded.sum_reply.payload
            try:
                requests = machine.send(replies)
            except StopIteration as stop:
                return stop.value


def vector_in(reply: bytes) -> bytes | None:
    """The masked vector in a hospital's reply; None where it carries none."""
    message = wire.Reply.FromString(reply)
    if message.WhichOneof("body") != "sum_reply":
        return None
    inner = secagg_pb2.Reply.FromString(message.sum_reply.payload)
    return bytes(inner.body) if inner.stage == Stage.MASK else None


@contextmanager
def after_each_step(act: Callable[[str], None]) -> Iterator[None]:
    """Calls ``act(step)`` after every step inside the answer that carries the vector, and only there."""

    def then(owner: Any, name: str, step: str, wanted: Callable[..., bool] = lambda *_a, **_k: True) -> Any:
        real = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if wanted(*arguments, **options) and masking:
                act(step)
            return result

        return patch.object(owner, name, wrapped)

    masking: list[bool] = []
    real_vector = party_module.Party._mask_vector

    def vector(*arguments: Any) -> Any:
        masking.append(True)
        return real_vector(*arguments)

    with ExitStack() as stack:
        stack.enter_context(patch.object(party_module.Party, "_mask_vector", vector))
        stack.enter_context(then(ledger_module.Ledger, "charge", "charged"))
        stack.enter_context(then(party_module.Party, "_compute_grid", "computed"))
        stack.enter_context(then(store.Store, "commit", "journaled"))
        stack.enter_context(then(ledger_module.Ledger, "send", "noted"))
        stack.enter_context(then(checkpoints.LedgerCheckpoints, "keep", "marked"))
        real_answer = JournaledParty.answer

        def answer(*arguments: Any) -> Any:
            try:
                return real_answer(*arguments)
            finally:
                masking.clear()

        stack.enter_context(patch.object(JournaledParty, "answer", answer))
        yield


class Process:
    """The hospital in a process of its own, which ends by SIGKILL after a given step; requests go through a pipe."""

    def __init__(self, hospital: Hospital, dies_after: str = "") -> None:
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(from_parent)
                os.close(to_parent)
                self._serve(hospital, dies_after, to_child, from_child)
            finally:
                os._exit(1)
        os.close(to_child)
        os.close(from_child)
        self._to, self._from = from_parent, to_parent

    @staticmethod
    def _serve(hospital: Hospital, dies_after: str, source: int, target: int) -> None:
        def die(step: str) -> None:
            if step == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        party = hospital.start()
        with after_each_step(die):
            while (request := _received(source)) is not None:
                _write(target, party.answer(request).reply)

    def ask(self, request: bytes) -> bytes | None:
        """The reply; None where the process died instead."""
        try:
            _write(self._to, request)
            return _received(self._from)
        except BrokenPipeError:
            return None

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._to)
        os.close(self._from)
        return status


def _write(target: int, data: bytes) -> None:
    data = len(data).to_bytes(8, "little") + data
    while data:
        data = data[os.write(target, data) :]


def _received(source: int) -> bytes | None:
    def exactly(size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            part = os.read(source, size - len(data))
            if not part:
                return None
            data += part
        return data

    head = exactly(8)
    return None if head is None else exactly(int.from_bytes(head, "little"))


def _request(**body: Any) -> bytes:
    return wire.Request(version=codec.VERSION, **body).SerializeToString()


def contents(paths: Mapping[str, Path]) -> str:
    """A hash of files and folders, by name."""
    digest = hashlib.sha256()
    for name, path in sorted(paths.items()):
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(f"{name}/{file.name}\0".encode() + (file.read_bytes() if file.exists() else b""))
    return digest.hexdigest()
