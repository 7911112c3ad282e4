"""Runs that were proposed to this party, and what its people decided. One small file a run.

The daemon writes a proposal when it arrives and reads the decision; the commands ``approve``, ``reject`` and ``revoke``
write it, signed by the party's identity key. A decision counts for one manifest, hash by hash.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from undersong_client.state import PartyHome, read_json, write_json
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from undersong_protocol.manifest import Manifest

TAG = "undersong decision"
MOST_PENDING = 100
LARGEST_MANIFEST_BYTES = 16 * 2**20
Decision = Literal["pending", "approved", "rejected", "revoked"]


@dataclass(frozen=True)
class Request:
    """One proposed run.

    Attributes:
        run: the run's name as the coordinator gives it.
        manifest: hash (hex) of what is to be signed.
        received_s, decided_s: seconds since the epoch; decided_s is 0 while it is pending.
        decision: what people (or the standing policy) decided.
        reason: why, in the words of who decided; sent to the operator with a refusal.
        epsilon, parties: as the manifest says, for lists.
        objection: why the guard refuses it as things stand, whatever people decide; empty where it does not.
        signature: hex, over the decision, by the identity key.
    """

    run: str
    manifest: str
    received_s: float
    decision: Decision = "pending"
    decided_s: float = 0.0
    reason: str = ""
    epsilon: float | None = None
    delta: float = 0.0
    parties: int = 0
    method: str = ""
    objection: str = ""
    signature: str = ""

    @property
    def undecided(self) -> bool:
        """Whether it waits for a person, and for nothing else."""
        return self.decision == "pending" and not self.objection

    @property
    def statement(self) -> bytes:
        """What is signed."""
        return tagged_hash(TAG, canonical_json([self.run, self.manifest, self.decision, self.decided_s, self.reason]))


class Requests:
    """The folder of proposals."""

    def __init__(self, home: PartyHome) -> None:
        self._home = home
        self._folder = home.requests

    def all(self) -> list[Request]:
        """Oldest first."""
        found = [_request(path) for path in self._folder.glob("*.json")]
        return sorted(found, key=lambda request: (request.received_s, request.run))

    def find(self, run: str) -> Request:
        """By the run's name or the beginning of its manifest's hash. Raises ConfigurationError where none fits."""
        path = self._path(run)
        if path.exists():
            return _request(path)
        if len(run) >= 6:
            fitting = [request for request in self.all() if request.manifest.startswith(run.lower())]
            if len(fitting) == 1:
                return fitting[0]
        raise ConfigurationError(f"no run {run!r} was proposed to this party", "see `undersong-party requests`")

    def known(self, run: str) -> Request | None:
        path = self._path(run)
        return _request(path) if path.exists() else None

    def manifest_bytes(self, request: Request) -> bytes:
        """What is to be signed, checked against its hash."""
        path = self._path(request.run).with_suffix(".manifest")
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        if tagged_hash("undersong manifest", data).hex() != request.manifest:
            raise ConfigurationError(f"{path}: is damaged", "restart the daemon; the coordinator proposes it again")
        return data

    def receive(self, manifest: Manifest, *, at: float, objection: str = "") -> Request:
        """Keeps a proposal. A new manifest under a known name is pending again. Raises PrivacyRefusal when flooded."""
        known = self.known(manifest.run)
        if known is not None and known.manifest == manifest.hash.hex():
            return self._noted(known, objection)
        data = manifest.to_bytes()
        pending = sum(request.decision == "pending" for request in self.all())
        if len(data) > LARGEST_MANIFEST_BYTES or (known is None and pending >= MOST_PENDING):
            raise PrivacyRefusal(
                f"{pending} runs wait for a decision of this party", "wait until its people have decided"
            )
        privacy = manifest.plan.privacy
        request = Request(
            run=manifest.run,
            manifest=manifest.hash.hex(),
            received_s=at,
            epsilon=None if privacy.epsilon == float("inf") else privacy.epsilon,
            delta=privacy.delta,
            parties=len(manifest.roster),
            method=manifest.method,
            objection=objection,
        )
        replace_file(self._path(manifest.run).with_suffix(".manifest"), data)
        write_json(self._path(manifest.run), asdict(request))
        return request

    def refused(self, manifest: Manifest, objection: str, *, at: float) -> None:
        """Keeps a proposal that the guard refuses, so that people see it; nothing where too many wait already."""
        known = self.known(manifest.run)
        if known is not None and known.manifest != manifest.hash.hex():
            # What was decided about the first manifest stands.
            self._noted(known, f"another manifest under this name: {objection}")
            return
        with contextlib.suppress(PrivacyRefusal):
            self.receive(manifest, at=at, objection=objection)

    def _noted(self, request: Request, objection: str) -> Request:
        if request.objection == objection:
            return request
        noted = replace(request, objection=objection)
        write_json(self._path(request.run), asdict(noted))
        return noted

    def decide(self, request: Request, decision: Decision, *, at: float, reason: str = "") -> Request:
        """Signs and writes a decision.

        Raises:
            ConfigurationError: what was rejected or revoked cannot be approved any more.
        """
        from undersong_client import keys

        if request.decision in ("rejected", "revoked") and decision == "approved":
            raise ConfigurationError(
                f"run {request.run!r} was {request.decision}", "have the operator propose it under a new name"
            )
        if decision == "revoked" and request.decision not in ("approved", "revoked"):
            raise ConfigurationError(f"run {request.run!r} was not approved", "undersong-party reject RUN")
        if decision == "rejected" and request.decision == "approved":
            raise ConfigurationError(f"run {request.run!r} is approved", "undersong-party revoke RUN")
        decided = replace(request, decision=decision, decided_s=at, reason=reason)
        signature = keys.identity(self._home).sign(decided.statement).hex()
        decided = replace(decided, signature=signature)
        write_json(self._path(request.run), asdict(decided))
        return decided

    def _path(self, run: str) -> Path:
        return self._folder / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.json"


class PersonalConsent:
    """What the guard cannot know: whether a person has approved. Implements ``undersong_client.party.Consent``.

    Args:
        standing: read anew each time, so that a changed policy counts at once.
        clock: seconds since the epoch.
    """

    def __init__(self, home: PartyHome, *, standing: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._home = home
        self._requests = Requests(home)
        self._standing = standing
        self._clock = clock

    def decide(self, manifest: Manifest) -> str:
        request = self._requests.receive(manifest, at=self._clock())
        if request.decision == "pending" and self._standing():
            request = self._requests.decide(request, "approved", at=self._clock(), reason="standing policy")
        if request.decision == "pending":
            return "waits for the approval of a person at this party"
        self._check(request)
        return ""

    def refused(self, manifest: Manifest, reason: str) -> None:
        self._requests.refused(manifest, reason, at=self._clock())

    def check(self, manifest: Manifest) -> None:
        request = self._requests.known(manifest.run)
        if request is None or request.manifest != manifest.hash.hex():
            raise PrivacyRefusal(f"run {manifest.run!r} was never approved by this party")
        self._check(request)

    def _check(self, request: Request) -> None:
        from cryptography.exceptions import InvalidSignature

        from undersong_client import keys

        if request.decision != "approved":
            words = f": {request.reason}" if request.reason else ""
            raise PrivacyRefusal(
                f"run {request.run!r} was {request.decision} by this party{words}", "talk to its people"
            )
        try:
            public = keys.identity(self._home).public_key()
            public.verify(bytes.fromhex(request.signature), request.statement)
        except (ValueError, InvalidSignature):
            raise PrivacyRefusal(f"the approval of run {request.run!r} is not signed by this party's key") from None


def _request(path: Path) -> Request:
    try:
        request = Request(**read_json(path))
        if request.decision not in get_args(Decision):
            raise TypeError
    except TypeError:
        raise ConfigurationError(f"{path}: is damaged", "remove it; the coordinator proposes the run again") from None
    return request
