"""From the hospital's folder to a party that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.answering.computation import Computation, HospitalComputation, Lazy
from undersong_client.answering.computing_process import ComputingProcess
from undersong_client.answering.party import Party
from undersong_client.consent import plugins, policy
from undersong_client.consent.approvals import PersonalConsent
from undersong_client.home import PartyHome
from undersong_client.records import snapshot
from undersong_client.storage import datasets
from undersong_client.storage.checkpoints import LedgerCheckpoints
from undersong_client.storage.public_blocks import DiskBlocks
from undersong_client.storage.store import Store
from undersong_common.embedding import Embedder
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.secagg import kem
from undersong_protocol.secagg.kem import Encapsulate
from undersong_protocol.secagg.parameters import Entropy


@dataclass(frozen=True)
class Assembled:
    """A party and what the daemon keeps beside it."""

    party: Party
    ledger: Ledger
    checkpoints: LedgerCheckpoints
    computation: Computation

    def keep_checkpoints(self) -> None:
        """Keeps the ledger's head outside the party's folder; before a reply leaves. Raises PrivacyRefusal."""
        if not isinstance(self.ledger, Lazy) or self.ledger.made:
            self.checkpoints.keep(self.ledger)


def assemble(
    home: PartyHome,
    *,
    checkpoints: Path,
    clock: Callable[[], float],
    embedder: Embedder | None = None,
    entropy: Callable[[str], Entropy] = keys.from_system,
    encapsulate: Encapsulate = kem.encapsulate,
    computation: Computation | None = None,
    logs: Callable[[], None] | None = None,
) -> Assembled:
    """Opens everything but the records, which only the process that computes vectors reads.

    Args:
        embedder: another one than the folder's settings name, in tests.
        entropy, encapsulate: secrets for a named purpose, and for another party; the system's, but in tests.
        computation: computes the vectors; by default in a process of its own, which is started when it is first needed.
        logs: sets up that process's log.

    Raises:
        ConfigurationError, PrivacyRefusal: what is missing, damaged or refused, with the remedy.
    """
    ledger, kept = datasets.open_ledger(home, policy.read(home), checkpoints, at=clock())
    embedder = embedder or embedder_of(home)
    blocks = DiskBlocks(home.blocks)
    blocks.prune()
    if computation is None:
        computation = ComputingProcess(partial(HospitalComputation, PartyHome(home.path)), logs=logs)
    party = _party(home, computation, ledger, blocks, embedder, clock, entropy, encapsulate)
    return Assembled(party, ledger, kept, computation)


def embedder_of(home: PartyHome) -> Embedder:
    """The embedder with which the data set was added; one version of a data set never changes it.

    Raises ConfigurationError where this program has another one under its name, or none.
    """
    found = home.settings.load_embedder()
    if snapshot.facts(home).embedder not in ("", found.fingerprint):
        raise ConfigurationError(
            f"the records were added with another embedder than {home.settings.embedder!r} is now",
            "bring back what was there, or declare a new version: undersong-party data add FILE --new-version",
        )
    return found


def assemble_for_a_message(
    home: PartyHome, *, checkpoints: Path, clock: Callable[[], float], address: str = ""
) -> Assembled:
    """The same party for a process that answers one message: what the message does not need is never opened.

    A step of a private sum but the masked vector's reads neither records nor ledger nor model. What is missing, damaged
    or refused of ledger, keys and model is found when it is first used, and becomes the refusal that is answered:
    nothing is charged before :func:`undersong_client.storage.datasets.open_ledger` has checked ledger and checkpoints.

    Raises:
        ConfigurationError, PrivacyRefusal: keys or policy are missing or damaged.
    """
    allowed = policy.read(home)
    embedder: Any = Lazy(lambda: embedder_of(home))
    opened = cache(lambda: datasets.open_ledger(home, allowed, checkpoints, at=clock()))
    ledger: Any = Lazy(lambda: opened()[0])
    kept: Any = Lazy(lambda: opened()[1])
    # Computed in this process: it answers this message and nothing else, the SuperNode's own process does the rest.
    computation = HospitalComputation(home, embedder)
    blocks = DiskBlocks(home.blocks)
    party = _party(home, computation, ledger, blocks, embedder, clock, address=address)
    return Assembled(party, ledger, kept, computation)


def _party(
    home: PartyHome,
    computation: Computation,
    ledger: Ledger,
    blocks: DiskBlocks,
    embedder: Embedder,
    clock: Callable[[], float],
    entropy: Callable[[str], Entropy] = keys.from_system,
    encapsulate: Encapsulate = kem.encapsulate,
    address: str = "",
) -> Party:
    settings = home.settings
    seed = settings.insecure_noise_seed
    allowed = policy.read(home)
    plugins.load_trusted(allowed)
    return Party(
        settings.party,
        identity=keys.identity(home),
        computation=computation,
        policy=allowed.bounds,
        ledger=ledger,
        store=Store(home.journal, settings.party, keys.secret(home, "store"), home.attempts),
        blocks=blocks,
        embedder=embedder,
        entropy=entropy if seed is None else keys.insecure(seed, settings.party),
        clock=clock,
        encapsulate=encapsulate,
        address=address,
        teacher_model=lambda: home.settings.teacher_model,
        consent=PersonalConsent(home, standing=lambda: policy.read(home).approval == "standing", clock=clock),
    )
