"""From the hospital's folder to a party that answers."""

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
from undersong_protocol.secagg.keys import Encapsulate, encapsulate
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
    one_message: bool = False,
    embedder: Embedder | None = None,
    entropy: Callable[[str], Entropy] = keys.from_system,
    encapsulate: Encapsulate = encapsulate,
    computation: Computation | None = None,
    logs: Callable[[], None] | None = None,
    address: str = "",
) -> Assembled:
    """Opens everything but the records, which only the process that computes vectors reads.

    Args:
        one_message: this process answers one message, and opens no more than that needs. A step of a private sum but
            the masked vector's reads neither records nor ledger nor model. What is missing, damaged or refused of
            ledger and model then becomes the refusal that is answered: nothing is charged before
            :func:`undersong_client.storage.datasets.open_ledger` has checked ledger and checkpoints.
        embedder: another one than the folder's settings name, in tests.
        entropy, encapsulate: secrets for a named purpose, and for another party; the system's, but in tests.
        computation: computes the vectors; by default in a process of its own, which is started when it is first needed,
            or in this one for ``one_message``.
        logs: sets up that process's log.
        address: as of :class:`Party`.

    Raises:
        ConfigurationError, PrivacyRefusal: what is missing, damaged or refused, with the remedy.
    """
    settings, seed = home.settings, home.settings.insecure_noise_seed
    allowed = policy.read(home)
    opened = cache(lambda: datasets.open_ledger(home, allowed, checkpoints, at=clock()))
    ledger: Any = Lazy(lambda: opened()[0])
    kept: Any = Lazy(lambda: opened()[1])
    model: Any = embedder or Lazy(lambda: embedder_of(home))
    if one_message:
        computation = HospitalComputation(home, model)
    else:
        ledger, kept = opened()
        model = embedder or embedder_of(home)
        computation = computation or ComputingProcess(partial(HospitalComputation, PartyHome(home.path)), logs=logs)
    plugins.load_trusted(allowed)
    party = Party(
        settings.party,
        identity=keys.identity(home),
        computation=computation,
        policy=allowed.bounds,
        ledger=ledger,
        store=Store(home.journal, settings.party, keys.secret(home, "store"), home.attempts),
        blocks=DiskBlocks(home.blocks),
        embedder=model,
        entropy=entropy if seed is None else keys.insecure(seed, settings.party),
        clock=clock,
        encapsulate=encapsulate,
        address=address,
        teacher_model=lambda: home.settings.teacher_model,
        consent=PersonalConsent(home, standing=lambda: policy.read(home).approval == "standing", clock=clock),
    )
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
