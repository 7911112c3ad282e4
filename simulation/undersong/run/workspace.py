"""A simulation's folder: which run it holds, the state that a continued run needs, and the parties made from it."""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_client import keys
from undersong_client.answering.computation import Computed, RecordComputation, VectorRequest
from undersong_client.answering.grid_vectors import Contribution, grid_vector
from undersong_client.answering.party import EmbedderFacts, Party, PartyRules, PartyStorage
from undersong_client.records.private import DataSet
from undersong_client.storage import store
from undersong_client.storage.attempts import PartyKeys
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.files import is_empty, replace_file
from undersong_common.models.embedding import Embed, EmbeddingCache, EncryptedFileCache
from undersong_common.privacy.ledger import Ledger
from undersong_common.program.logs import place_of
from undersong_common.text.table import Table
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.secagg.parameters import Entropy
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.wire.public import BlockStore
from undersong_server import methods
from undersong_server.database.journal import Journal
from undersong_server.release.files import OUTPUT_NAMES, WORKSPACE_NAME
from undersong_server.runs.task import Task

KEYS = "keys.json"
PARTIES = "parties.sqlite"  # encrypted journal of all parties
# Version of a run's folder. Version 1 divided the records by shuffles and derived the parties' data keys from the seed.
# Version 2 had prompts of another form and did not keep what became of an answer.
FORMAT = 3


class Workspace:
    """Opens an output folder: new, or of the same run, which then goes on.

    Raises ConfigurationError where it holds another run or other files.

    Attributes:
        folder: the output folder.
        journal: the coordinator's journal.
        state: folder of what only this program reads (journal, encrypted party stores, keys).
        method_changed: True if the method is not Undersong's, and its code has changed since the run began.
    """

    def __init__(self, folder: Path, task: Task, arguments: dict[str, Any], *, fresh: bool) -> None:
        self.folder = folder.absolute()
        self.state = self.folder / WORKSPACE_NAME
        if fresh:
            self._clear_folder()
        is_continued = (self.state / "journal.sqlite").exists()
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigurationError(f"{folder}: is a file", "name a folder with --out")
        if not is_continued and self.folder.exists() and not is_empty(self.folder):
            raise ConfigurationError(
                f"{folder}: holds files that no run of Undersong wrote", "name an empty folder", code="foreign-folder"
            )
        try:
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(f"{folder}: cannot be made: {error.strerror}", "choose another --out") from None
        self.journal = Journal(self.state / "journal.sqlite")
        self.continued = is_continued
        self._claim_folder(task, arguments)
        self.method_changed = self._has_other_code(task.method.name)

    def _claim_folder(self, task: Task, arguments: dict[str, Any]) -> None:
        """Notes the run in a new folder. Raises ConfigurationError for the folder of another run.

        Settings of how generators are reached and limited may differ.
        """
        claim_facts = {
            **task.model_dump(mode="json", exclude={"output", "generators"}),
            "generators": [generator.identity() for generator in task.generators],
            "arguments": arguments,
            "format": FORMAT,
        }
        digest = hashlib.sha256(json.dumps(claim_facts, sort_keys=True).encode("utf-8")).digest()
        if (stored_digest := self.journal.get("run/task")) is None:
            self.journal.put("run/task", digest)
        elif stored_digest != digest:
            self.journal.close()
            raise ConfigurationError(
                f"{self.folder}: holds another run (another task file, option or seed, or of an older Undersong)",
                "name another folder with --out, or start over with --fresh",
                code="other-run",
            )

    def _has_other_code(self, method: str) -> bool:
        """Returns True if a method of other people has changed since the run began; keeps the hash of a new run's."""
        code_hash = methods.hash_code(method).encode()
        stored_hash = self.journal.get("run/method")
        if stored_hash is None and not self.continued:
            self.journal.put("run/method", code_hash)
        return stored_hash not in (None, code_hash)

    def _clear_folder(self) -> None:
        store.close(self.state / PARTIES)
        if not (self.state / "journal.sqlite").exists():
            return
        for output_name in OUTPUT_NAMES:
            (self.folder / output_name).unlink(missing_ok=True)
        shutil.rmtree(self.state)

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        store.close(self.state / PARTIES)


def read_keys(state: Path) -> dict[str, bytes]:
    """Reads the keys of the simulated parties by key name, as :meth:`SimulatedParties.draw_keys` wrote them."""
    return {name: bytes.fromhex(key) for name, key in json.loads((state / KEYS).read_text(encoding="utf-8")).items()}


PARTY_KEYS = ("identity", "data")  # A hospital draws both at `init`: its signing key and the secret of its data set.


def ledger_path(state: Path, party: str) -> Path:
    return state / "ledgers" / f"{party}.jsonl"


@dataclass(frozen=True)
class PartyProgram:
    """The two parts of a simulated party's program on which an audit looks.

    Attributes:
        contribution: computes the vector of a party's records.
        machine: adds noise and masks.
    """

    contribution: Contribution = grid_vector
    machine: type[PartyMachine] = PartyMachine


PRODUCT_PROGRAM = PartyProgram()


@dataclass(frozen=True)
class SimulatedParties:
    """Makes the parties of a simulation, in this process or in the actors of Flower's engine.

    Attributes:
        task: the simulation's task.
        state: the workspace's own folder.
        seed: deals one file of records to them.
        insecure_noise_seed: tests only.
    """

    task: Task
    state: Path
    seed: int
    insecure_noise_seed: int | None

    def draw_keys(self, names: Iterable[str]) -> None:
        """Draws the parties' keys, once per simulation; only this user can read them."""
        if (self.state / KEYS).exists():
            return
        party_keys = {f"{use}/{name}": self._entropy_of(name)(use)(32).hex() for name in names for use in PARTY_KEYS}
        replace_file(self.state / KEYS, json.dumps({"store": os.urandom(32).hex()} | party_keys).encode("utf-8"))

    @cached_property
    def keys(self) -> dict[str, bytes]:
        return read_keys(self.state)

    def shared_cache(self) -> EmbeddingCache:
        """Cache of the embeddings of private records: an encrypted file that several processes share."""
        return EncryptedFileCache(self.state / "embeddings.sqlite", self.keys["store"])

    def party(
        self,
        name: str,
        table: Table,
        *,
        blocks: BlockStore,
        embed: Embed,
        embedder: EmbedderFacts,
        clock: Callable[[], float],
        program: PartyProgram = PRODUCT_PROGRAM,
        address: str = "",
    ) -> Party:
        """Makes the party ``name`` from its state in the workspace, with the records in ``table``."""
        data_set = DataSet(table, self.keys[f"data/{name}"])
        party_computation = SimulatedComputation(
            name, data_set, embed, teacher_model=lambda: self.task.teacher_model, contribution=program.contribution
        )
        identity_key = Ed25519PrivateKey.from_private_bytes(self.keys[f"identity/{name}"])
        ledger = Ledger.open(ledger_path(self.state, name), data_set.fingerprint, at=clock())
        open_policy = Policy(largest_epsilon=math.inf, largest_delta=1.0)
        return Party(
            name,
            PartyKeys(identity_key, self._entropy_of(name), machine=program.machine),
            PartyStorage(ledger, store.Store(self.state / PARTIES, name, self.keys["store"]), blocks),
            PartyRules(open_policy, embedder, teacher_model=lambda: self.task.teacher_model, address=address),
            party_computation,
            clock,
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Joins all that the parties write within the block to one write, which is on disk when the block ends.

        Raises ConfigurationError if something could not be written; then none of the replies may be used.
        """
        journal = store.journal(self.state / PARTIES)
        undone_before = journal.undone
        with journal.together():
            yield
        if journal.undone != undone_before:
            raise ConfigurationError(
                f"{self.state / PARTIES}: cannot be written",
                "free space, check permissions, and run again",
                code="not-written",
            )

    def _entropy_of(self, name: str) -> Callable[[str], Entropy]:
        seed = self.insecure_noise_seed
        if seed is None:
            return keys.from_system
        return keys.insecure(seed, name)


class SimulatedComputation(RecordComputation):
    """Computes vectors and keeps the exception that a failing statistic raises, for the person who simulates.

    A hospital's program counts zero for a record at which a statistic fails: a party that fell silent would tell
    something of its records.
    """

    failure: UndersongError | None = None

    def vector(self, request: VectorRequest, *, start_s: float = 0.0) -> Computed:
        try:
            return super().vector(request, start_s=start_s)
        except Exception as error:
            statistic = request.planned.statistic
            self.failure = UndersongError(
                f"the statistic {statistic} fails at {self.name}'s records: {place_of(error)}",
                "mend it, then run the same command again; a hospital's program would count zero for each record at"
                " which it fails",
                code="statistic-fails",
            )
            raise


def clocks(insecure_noise_seed: int | None) -> tuple[Callable[[], float], Callable[[], float]]:
    """Returns two clocks: seconds since the epoch, and monotonic seconds; both stand at 0 with an insecure seed."""
    # Outputs of an insecure seed are compared byte by byte, so no time may stand in them.
    if insecure_noise_seed is None:
        return (time.time, time.monotonic)
    return (lambda: 0.0, lambda: 0.0)
