"""Opens the parts of a party from the hospital's folder, so that it can answer requests."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.answering.computation import Computation, HospitalComputation, Lazy
from undersong_client.answering.computing_process import ComputingProcess
from undersong_client.answering.party import Notes, Party, PartyRules, PartyStorage
from undersong_client.consent import policy, policy_file
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_client.records import snapshot
from undersong_client.storage import datasets
from undersong_client.storage.attempts import PartyKeys
from undersong_client.storage.checkpoints import LedgerCheckpoints
from undersong_client.storage.public_blocks import DiskBlocks
from undersong_client.storage.store import Store
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.secagg.keys import Encapsulate, encapsulate
from undersong_protocol.secagg.parameters import Entropy


@dataclass(frozen=True)
class Assembled:
    """A party that is ready to answer, and the parts of it that a daemon also needs."""

    party: Party
    ledger: Ledger
    checkpoints: LedgerCheckpoints
    computation: Computation
    notes: Notes

    def keep_checkpoints(self) -> None:
        """Stores the ledger's head outside the party's folder; call it before a reply leaves.

        Raises MachineFault if it cannot be stored.
        """
        if not isinstance(self.ledger, Lazy) or self.ledger.is_made:
            self.checkpoints.keep(self.ledger)


def assemble(
    home: PartyHome,
    *,
    checkpoints: Path,
    clock: Callable[[], float],
    one_message: bool = False,
    embedder: Embedder | None = None,
    entropy: Callable[[str], Entropy] = keys.from_system,
    encapsulate: Encapsulate = encapsulate,
    computation: Computation | None = None,
    set_up_logs: Callable[[], None] | None = None,
    address: str = "",
) -> Assembled:
    """Opens a party's folder and returns the party; leaves the records to the process that computes vectors.

    Raises ConfigurationError or PrivacyRefusal for a part that is missing, damaged or refused, with the remedy.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        clock: returns seconds since the epoch.
        one_message: True for a process that answers one message and opens only what it needs. Only the request for
            the masked vector needs ledger and model. If these are missing, damaged or refused, the reply is a refusal:
            nothing is charged before :func:`undersong_client.storage.datasets.open_ledger` has checked the ledger.
        embedder: replaces the embedder that the folder's settings name, in tests.
        entropy, encapsulate: sources of randomness (:class:`PartyKeys`); tests replace the system's.
        computation: computes the vectors; by default in a child process, which is started when it is first needed, or
            with ``one_message`` in this process.
        set_up_logs: sets up the log of the child process.
        address: as in :class:`PartyRules`.
    """
    settings = home.settings
    seed = settings.insecure_noise_seed
    hospital_policy = policy.read(home)
    policy_file.note_first(home)
    open_ledger = cache(lambda: datasets.open_ledger(home, hospital_policy, checkpoints, at=clock()))
    ledger: Any = Lazy(lambda: open_ledger()[0])
    ledger_checkpoints: Any = Lazy(lambda: open_ledger()[1])
    party_embedder: Any = embedder or Lazy(lambda: embedder_of(home))
    if one_message:
        computation = HospitalComputation(home, party_embedder)
    else:
        ledger, ledger_checkpoints = open_ledger()
        party_embedder = embedder or embedder_of(home)
        computation = computation or ComputingProcess(
            partial(HospitalComputation, PartyHome(home.path)), set_up_logs=set_up_logs
        )
    party_keys = PartyKeys(
        keys.identity(home), entropy if seed is None else keys.insecure(seed, settings.party), encapsulate
    )
    party_store = Store(home.journal, settings.party, keys.secret(home, "store"), home.attempts)
    party_storage = PartyStorage(ledger, party_store, DiskBlocks(home.blocks))
    proposals = Proposals(home, clock=clock)
    party_rules = PartyRules(
        hospital_policy.bounds, party_embedder, proposals, lambda: home.settings.teacher_model, address
    )
    party_notes = Notes()
    party = Party(settings.party, party_keys, party_storage, party_rules, computation, clock, party_notes)
    return Assembled(party, ledger, ledger_checkpoints, computation, party_notes)


def embedder_of(home: PartyHome) -> Embedder:
    """Loads the embedder with which the data set was added, which one version of a data set never changes.

    Raises ConfigurationError if the name in the settings stands for another model now, or for none.
    """
    embedder = home.settings.load_embedder()
    if snapshot.facts(home).embedder not in ("", embedder.fingerprint):
        raise ConfigurationError(
            f"the records were added with another embedder than {home.settings.embedder!r} is now",
            "put the former model back, or declare a new version: undersong-party data add FILE --new-version",
        )
    return embedder
