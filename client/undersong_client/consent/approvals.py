"""Plans that were proposed to this party and its people's decisions, in one small file per plan, named by its hash.

The daemon writes a proposal when it arrives, and later reads the decision. The commands ``approve``, ``reject`` and
``revoke`` write the decision, signed by the party's identity key. A decision counts for the plan with one hash only:
another plan under the same name is a new request, which states the differences.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from cryptography.exceptions import InvalidSignature

from undersong_client import keys
from undersong_client.consent.people import Decision, Person, PersonalDecision, check_another
from undersong_client.consent.sheet import Sheet, hash_stored
from undersong_client.home import CLOCK_TOLERANCE_S, FILE_MODE, PartyHome, json_object, read_json, write_json
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.files import FileState, file_state, replace_file
from undersong_common.printable import printable, shell_word
from undersong_common.program.machine import named_faults

if TYPE_CHECKING:
    from undersong_protocol.agreement.manifest import Manifest

log = logging.getLogger(__name__)

TAG = "undersong decision"
MOST_PENDING = 100
MOST_PLANS = 20  # plans that may be proposed under one name
LARGEST_MANIFEST_BYTES = 16 * 2**20
HASH_BYTES = 32
SHEET = ".sheet"  # suffix of the figures that were signed
# What a hospital's people have done with a run that it does not answer, for the operator.
DECIDED = {"pending": "have not approved", "rejected": "have rejected", "revoked": "have withdrawn from"}
SAVED = (".json", ".manifest", SHEET)  # suffixes of the files of one plan
RESTORED, OTHER_DATA = "", "other data"
LAPSES = {  # why an approval consents to nothing any more, for this hospital's people
    RESTORED: "This approval came back from saved evidence and consents to nothing: it may have been withdrawn since"
    " it was saved. Approve the plan once more, or reject it.",
    OTHER_DATA: "This approval was given for the data set before, and consents to nothing. Approve the plan once more,"
    " or reject it.",
}


@dataclass(frozen=True)
class Proposal:
    """One proposed plan and the state of the decision about it.

    Attributes:
        run: name that the coordinator gives the run.
        manifest: hash (hex) of the manifest to sign.
        received_s, decided_s: times, seconds since the epoch; ``decided_s`` is 0 while the decision is pending.
        decision: decision of people, or of the standing policy.
        reason: reason in the words of whoever decided; sent to the operator with a refusal.
        epsilon, parties: figures of the manifest, for lists.
        objection: reason why the policy's checks refuse the plan now, whatever people decide; "" if they accept it.
        signature: signature (hex) of the decision by the party's identity key.
        words: the manifest's hash in words (``undersong_protocol.agreement.manifest``).
        sheet: hash (hex) of the figures that people read and approved (``consent.sheet``); "" if nobody read them.
        people: the people who took part in the decision, in order; the first of two approvals is here before the
            decision is complete.
        restored_s: time at which it came back from saved evidence, or lapsed for the reason ``lapse``; 0 if neither. An
            approval from before it is shown and consents to nothing: it may have been withdrawn after the evidence was
            saved. What comes back is signed anew with it.
        lapse: reason why an approval lapsed, a key of :data:`LAPSES`.
        number: number of this plan among those proposed under the same name, from 1.
        revises: name of the earlier run, proposed here, that this one replaces; "" for no run.
        changes: differences from the plan that people here saw last under this name or the revised run's, or from the
            first one.
        replaced: True if another plan was proposed under this name later.
        ended_s: time at which the run ended here; 0 before.
        suspended_s: time since which the coordinator sends no requests for the run for now; 0 if it does.
        previewed_s, previewed_sheet: time at which `preview` last showed this plan, and its sheet's hash; 0 and "" if
            never.
        previewed_parts: hash of each part of that sheet (``consent.sheet``).
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
    words: str = ""
    number: int = 1
    revises: str = ""
    changes: tuple[str, ...] = ()
    replaced: bool = False
    ended_s: float = 0.0
    suspended_s: float = 0.0
    previewed_s: float = 0.0
    previewed_sheet: str = ""
    previewed_parts: Mapping[str, str] = field(default_factory=dict, hash=False)
    sheet: str = ""
    people: tuple[PersonalDecision, ...] = ()
    restored_s: float = 0.0
    lapse: str = ""

    @property
    def changes_to_read(self) -> tuple[str, ...]:
        """The differences from the plan before, in words for people, with what is better or worse."""
        from undersong_client.consent.differences import changes_to_read

        return changes_to_read(self.changes)

    @property
    def has_lapsed(self) -> bool:
        """True if the plan was approved before it came back from saved evidence or lapsed, and not again since."""
        return self.decision == "approved" and bool(self.restored_s) and not self.ended_s

    @property
    def lapse_words(self) -> str:
        """Sentence why the approval has lapsed; "" if it has not."""
        if not self.has_lapsed:
            return ""
        return LAPSES.get(self.lapse, LAPSES[RESTORED])

    @property
    def goes_on(self) -> bool:
        """True if the plan is approved and its run has not ended here."""
        return self.decision == "approved" and not (self.has_lapsed or self.ended_s)

    @property
    def is_open(self) -> bool:
        """True if nobody has decided, or if what was decided has lapsed."""
        return self.decision == "pending" or self.has_lapsed

    @property
    def undecided(self) -> bool:
        """True if the plan waits for a person: open, acceptable to the policy, not replaced, ended or suspended."""
        has_obstacle = self.objection or self.replaced or self.ended_s or self.suspended_s
        return self.is_open and not has_obstacle

    @property
    def approvals(self) -> tuple[PersonalDecision, ...]:
        """The approvals of people that count."""
        return tuple(
            approval for approval in self.people if approval.decision == "approved" and approval.at_s >= self.restored_s
        )

    @property
    def refused(self) -> bool:
        """True if the decision is pending but the policy's checks refuse the plan, so that the run fails."""
        return self.decision == "pending" and bool(self.objection) and not (self.replaced or self.ended_s)

    @property
    def suspended(self) -> str:
        """Sentence why the coordinator sends no requests for the run now; "" if it does."""
        if not self.suspended_s or self.ended_s:
            return ""
        return "the coordinator says that it has failed: nothing of it is asked until it is proposed again or goes on"

    @property
    def statement(self) -> bytes:
        """Returns the bytes that the decision's signature covers."""
        people = [decider.to_json() for decider in self.people]
        signed_values = [self.run, self.manifest, self.decision, self.decided_s, self.reason, self.sheet, people]
        restoration_values = [self.restored_s] if self.restored_s else []
        return tagged_hash(TAG, canonical_json(signed_values + restoration_values))


class Consent:
    """Interface of a party's decisions about runs, in addition to its policy. This base class consents to every run."""

    def reason_to_wait(self, manifest: Manifest) -> str:
        """Returns "" if the manifest may be signed, else the reason to wait. Raises PrivacyRefusal after a refusal."""
        return ""

    def check(self, manifest: Manifest) -> None:
        """Raises PrivacyRefusal if the consent to a signed run was withdrawn."""

    def refused(self, manifest: Manifest, reason: str) -> None:
        """Stores a proposed run that the policy's checks refuse, with the reason, for people to see."""

    def ended(self, manifest: bytes) -> None:
        """Records that no request of a run is answered any more; ``manifest`` is the hash of its manifest."""

    def suspended(self, manifest: bytes, *, is_suspended: bool) -> None:
        """Records that the coordinator has suspended (``is_suspended``) or resumed a run; ``manifest`` is its hash."""


class Proposals(Consent):
    """The folder of proposed plans and decisions, and with it the consent of people to each plan.

    Several processes may use it at once.

    Args:
        clock: returns seconds since the epoch.
    """

    def __init__(self, home: PartyHome, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._folder = home.requests
        self._clock = clock
        self._approved: dict[bytes, tuple[FileState, FileState]] = {}  # states of the checked files, by manifest

    def all(self) -> list[Proposal]:
        """Returns all requests, oldest first."""
        requests = []
        for path in self._folder.glob("*.json"):
            try:
                requests.append(_read_proposal(path))
            except ConfigurationError as error:  # one file does not hide the others
                log.error("%s; %s", error.problem, error.remedy)
        return sorted(requests, key=lambda request: (request.received_s, request.run, request.number))

    def under(self, run: str) -> list[Proposal]:
        """Returns the plans that were proposed under one name; the last one is in force."""
        return sorted((request for request in self.all() if request.run == run), key=lambda request: request.number)

    def find(self, run: str, *, decision: Decision | None = None) -> Proposal:
        """Returns the request that ``run`` names: a whole hash, the name of a run, or the beginning of a hash.

        Of several plans under a name it returns the last one. A whole hash comes first, because an operator may name a
        run like another plan's hash.

        Args:
            decision: prefers the last plan with this decision, if there is one.

        Raises ConfigurationError if no request fits.
        """
        all_proposals = self.all()
        matching_proposals = [request for request in all_proposals if request.manifest == run.lower()] or self.under(
            run
        )
        if not matching_proposals and len(run) >= 6:
            matching_proposals = [request for request in all_proposals if request.manifest.startswith(run.lower())]
            if len(matching_proposals) > 1:
                matching_proposals = []
        if not matching_proposals:
            raise ConfigurationError(
                f"no run {run!r} was proposed to this party", "see `undersong-party requests`", code="unknown-run"
            )
        return next(
            (request for request in reversed(matching_proposals) if request.decision == decision),
            matching_proposals[-1],
        )

    def known(self, manifest: bytes) -> Proposal | None:
        """Returns the request with this manifest hash; None if the manifest was never proposed here."""
        path = self._path_of(manifest.hex())
        if len(manifest) == HASH_BYTES and path.exists():
            return _read_proposal(path)
        return None

    def manifest_bytes(self, request: Proposal) -> bytes:
        """Reads the manifest of a request and checks it against its hash."""
        path = self._path_of(request.manifest).with_suffix(".manifest")
        try:
            with named_faults(path):
                manifest_bytes = path.read_bytes() if path.exists() else b""
        except ConfigurationError:  # a folder in the file's place, too, holds no plan of that hash
            manifest_bytes = b""
        if manifest_hash(manifest_bytes).hex() != request.manifest:
            raise ConfigurationError(
                f"{path}: is damaged", "restart the daemon; the coordinator proposes it again", code="damaged"
            )
        return manifest_bytes

    def sheet(self, request: Proposal) -> Sheet | None:
        """Reads the sheet that was signed; None without one, or if the file has another hash."""
        path = self._path_of(request.manifest).with_suffix(SHEET)
        if not request.sheet or not path.exists():
            return None
        sheet_json = read_json(path)
        if hash_stored(sheet_json) != request.sheet:
            return None
        return Sheet.from_json(sheet_json)

    def receive(self, manifest: Manifest, *, at: float, objection: str = "") -> Proposal:
        """Stores a proposal. A new plan under a known name becomes a new, pending request.

        Raises PrivacyRefusal if too many plans are proposed, or if the plan's words equal another plan's.
        """
        with self._hold_lock():
            stored_proposal = self.known(manifest.hash)
            if stored_proposal is not None and stored_proposal.ended_s:
                return stored_proposal
            if stored_proposal is not None and not stored_proposal.replaced:
                return self._write_changes(stored_proposal, objection=objection, suspended_s=0.0)
            earlier_proposals = self.under(manifest.run)
            proposal = stored_proposal or self._admit_proposal(manifest, len(earlier_proposals), at, objection)
            if earlier_proposals:
                proposal = replace(
                    proposal,
                    number=earlier_proposals[-1].number + 1,
                    changes=self._compare_with_earlier(manifest, earlier_proposals),
                    received_s=at,
                    replaced=False,
                    suspended_s=0.0,
                )
                log.warning(
                    "run %r is proposed with ANOTHER PLAN than before: %s",
                    proposal.run,
                    "; ".join(proposal.changes) or "one that was proposed earlier",
                )
            elif revised_proposals := self.under(str(manifest.task.get("revises", ""))):
                proposal = replace(
                    proposal,
                    revises=revised_proposals[-1].run,
                    changes=self._compare_with_earlier(manifest, revised_proposals),
                )
            replace_file(self._path_of(proposal.manifest).with_suffix(".manifest"), manifest.to_bytes())
            saved_proposal = self._write_changes(proposal, objection=objection, always=True)
            for earlier_plan in earlier_proposals:
                if earlier_plan.manifest != proposal.manifest:
                    self._write_changes(earlier_plan, replaced=True)
            self._prune_manifests(earlier_proposals, proposal)
            return saved_proposal

    def _admit_proposal(self, manifest: Manifest, earlier_count: int, at: float, objection: str) -> Proposal:
        from undersong_protocol.agreement.manifest import plan_words  # loads scipy, which no light command needs

        all_proposals = self.all()
        undecided_proposals = [
            request for request in all_proposals if request.decision == "pending" and not request.replaced
        ]
        finished_proposals = [
            request for request in undecided_proposals if request.ended_s or request.suspended_s or request.objection
        ]
        for request in finished_proposals[:-MOST_PENDING]:  # nobody has to decide about them, but they take room
            for saved_suffix in SAVED:
                self._path_of(request.manifest).with_suffix(saved_suffix).unlink(missing_ok=True)
        pending_count = len(undecided_proposals) - len(finished_proposals)
        is_large = len(manifest.to_bytes()) > LARGEST_MANIFEST_BYTES
        hash_words = plan_words(manifest.hash)
        hash_hex = manifest.hash.hex()
        PrivacyRefusal.raise_first(
            (
                is_large or (not earlier_count and not objection and pending_count >= MOST_PENDING),
                f"{pending_count} runs wait for a decision of this party",
                "wait until its people have decided",
                "too-many-pending",
            ),
            (
                earlier_count >= MOST_PLANS,
                f"{earlier_count} plans were proposed under the name {manifest.run!r}",
                "propose the run under a new name",
                "too-many-plans",
            ),
            (
                # Chance makes equal words once in 2^90 plans. An attacker would have one plan approved for another.
                any(request.words == hash_words and request.manifest != hash_hex for request in all_proposals),
                "the plan has the words of another plan that was proposed to this party",
                "somebody has searched for it: find out who made this plan",
                "words-in-use",
            ),
        )
        plan_privacy = manifest.plan.privacy
        return Proposal(
            run=manifest.run,
            manifest=hash_hex,
            received_s=at,
            epsilon=None if plan_privacy.epsilon == float("inf") else plan_privacy.epsilon,
            delta=plan_privacy.delta,
            parties=len(manifest.roster),
            method=manifest.method,
            words=hash_words,
        )

    def _compare_with_earlier(self, manifest: Manifest, earlier: list[Proposal]) -> tuple[str, ...]:
        from undersong_client.consent.differences import differences
        from undersong_protocol.agreement.manifest import Manifest

        try:
            earlier_manifest = Manifest.from_bytes(self.manifest_bytes(self._last_seen_plan(earlier)))
        except UndersongError:
            return ("nobody can say what: the earlier plan is not kept any more",)
        return differences(earlier_manifest, manifest)

    def _last_seen_plan(self, earlier: list[Proposal]) -> Proposal:
        """Returns the plan of this run that was last previewed or decided; the first plan if none was."""
        latest_at_s = self._clock() + CLOCK_TOLERANCE_S

        def seen_s(request: Proposal) -> float:  # a time ahead of now is a wrong clock's, and says nothing
            return max(
                (time_s for time_s in (request.previewed_s, request.decided_s) if time_s <= latest_at_s), default=0.0
            )

        return max(earlier, key=lambda request: (seen_s(request), -request.number))

    def _prune_manifests(self, earlier: list[Proposal], proposal: Proposal) -> None:
        """Deletes the manifests of replaced plans, except the one with which the next plan will be compared."""
        if earlier:
            compared_manifests = {self._last_seen_plan(earlier).manifest, proposal.manifest}
        else:
            compared_manifests = {proposal.manifest}
        for request in earlier:
            if request.manifest not in compared_manifests and request.number > 1 and request.decision == "pending":
                self._path_of(request.manifest).with_suffix(".manifest").unlink(missing_ok=True)

    def refused(self, manifest: Manifest, reason: str) -> None:
        # No plan with malformed figures is stored, and none from a coordinator that proposes too many.
        with contextlib.suppress(PrivacyRefusal):
            manifest.plan.check_form()
            self.receive(manifest, at=self._clock(), objection=reason)

    def ended(self, manifest: bytes) -> None:
        time_s = self._clock()
        self._update_stored(manifest, lambda stored: stored if stored.ended_s else replace(stored, ended_s=time_s))

    def suspended(self, manifest: bytes, *, is_suspended: bool) -> None:
        time_s = self._clock() if is_suspended else 0.0
        self._update_stored(manifest, lambda stored: replace(stored, suspended_s=time_s))

    def previewed(self, request: Proposal, sheet: Sheet, *, at: float) -> None:
        """Records that a command has shown a plan to a person, with this sheet."""
        read_hash = sheet.hash
        part_hashes = sheet.part_hashes
        self._update_stored(
            bytes.fromhex(request.manifest),
            lambda stored: replace(stored, previewed_s=at, previewed_sheet=read_hash, previewed_parts=part_hashes),
        )

    def _update_stored(self, manifest: bytes, change: Callable[[Proposal], Proposal]) -> None:
        stored_proposal = self.known(manifest)
        if stored_proposal is not None and change(stored_proposal) != stored_proposal:
            with self._hold_lock():
                self._write_changes(change(_read_proposal(self._path_of(stored_proposal.manifest))), always=True)

    def _write_changes(self, request: Proposal, *, always: bool = False, **changes: Any) -> Proposal:
        updated_proposal = replace(request, **changes)
        if always or updated_proposal != request:
            write_json(self._path_of(request.manifest), asdict(updated_proposal))
        return updated_proposal

    def decide(
        self,
        request: Proposal,
        decision: Decision,
        *,
        at: float,
        reason: str = "",
        sheet: Sheet | None = None,
        person: Person | None = None,
        roles: Sequence[str] = (),
    ) -> Proposal:
        """Signs and writes a decision about one plan; returns the request as it is then.

        Args:
            sheet: the sheet that is approved with the plan; it is stored, and its hash is signed.
            person: the person who decides; None for the standing policy.
            roles: roles of which each must approve, by different people and on the same sheet; the plan stays pending
                until the last one has. () needs one person of any role.

        Raises:
            ConfigurationError: the run has ended, the plan was replaced, the plan to approve was rejected or revoked,
                or this person cannot give the approval that is missing.
            PrivacyRefusal: an approval that would count is not signed by this party's key.
        """
        with self._hold_lock():
            request = _read_proposal(self._path_of(request.manifest))
            check_decision(request, decision)
            if sheet is not None and request.decision == decision and not request.has_lapsed:
                return request  # the sheet stays as it was signed
            read_hash = "" if sheet is None else sheet.hash
            people = request.people
            missing_roles = set(roles)
            if person is not None:
                if decision == "approved":  # an approval on another sheet has lapsed
                    # A restoration ahead of now was noted by a wrong clock: nobody has approved since.
                    approvals = request.approvals if request.restored_s <= at else ()
                    people = tuple(approval for approval in approvals if approval.sheet == read_hash)
                    if people and not self.is_signed(request):
                        raise PrivacyRefusal(
                            f"an approval of run {request.run!r} stands here that this party's key has not signed",
                            "find out who changed the file; reject the run, and have it proposed under a new name",
                            code="not-signed",
                        )
                    check_another(people, person, roles)
                people = (*people, PersonalDecision(**person.to_json(), decision=decision, at_s=at, sheet=read_hash))
                missing_roles -= {approval.role for approval in people}
            if decision == "approved" and missing_roles:
                # The first new approval voids what was decided before a restoration, whatever the clock says.
                pending_proposal = replace(request, decision="pending", decided_s=0.0, reason="", sheet="")
                updated_proposal = replace(pending_proposal, people=people, restored_s=min(request.restored_s, at))
            else:
                updated_proposal = replace(
                    request, decision=decision, decided_s=at, reason=reason, people=people, restored_s=0.0, lapse=""
                )
                if sheet is not None:
                    write_json(self._path_of(request.manifest).with_suffix(SHEET), sheet.to_json())
                    updated_proposal = replace(updated_proposal, sheet=read_hash)
            return self._write_changes(self._sign(updated_proposal), always=True)

    def _write_instead(self, before: Proposal, after: Proposal) -> None:
        """Writes a request in the place of ``before``, signed anew; what was unsigned stays so."""
        self._write_changes(self._sign(after) if self.is_signed(before) else after, always=True)

    def _sign(self, request: Proposal) -> Proposal:
        return replace(request, signature=keys.identity(self._home).sign(request.statement).hex())

    def reason_to_wait(self, manifest: Manifest) -> str:
        from undersong_client.consent import policy

        received_proposal = self.receive(manifest, at=self._clock())
        if received_proposal.ended_s:
            raise PrivacyRefusal(
                f"run {received_proposal.run!r} has ended at this party",
                "start a new run under a new name",
                code="run-ended",
            )
        # Read each time, so that a changed policy counts at once.
        if received_proposal.is_open and policy.read(self._home).approval == "standing":
            received_proposal = self.decide(received_proposal, "approved", at=self._clock(), reason="standing policy")
        if received_proposal.is_open:
            return "waits for the approval of a person at this party"
        self._check_approved(received_proposal)
        return ""

    def check(self, manifest: Manifest) -> None:
        # This runs before every reply, so files are read and verified again only when one of them has changed.
        files_state = file_state(self._path_of(manifest.hash.hex())), file_state(self._home.keys / "identity.key")
        if self._approved.get(manifest.hash) == files_state:
            return
        known_proposal = self.known(manifest.hash)
        if known_proposal is None or known_proposal.run != manifest.run:
            raise PrivacyRefusal(
                f"run {manifest.run!r} was never approved by this party",
                "have its people approve the run, then continue it",
                code="not-approved",
            )
        self._check_approved(known_proposal)
        self._approved[manifest.hash] = files_state

    def _check_approved(self, request: Proposal) -> None:
        if request.decision != "approved":
            reason_words = f": {request.reason}" if request.reason else ""
            raise PrivacyRefusal(
                f"its people {DECIDED[request.decision]} run {request.run!r}{reason_words}",
                "talk to its people",
                code=f"plan-{request.decision}",
            )
        if request.has_lapsed and request.lapse:  # the operator is not told why
            raise PrivacyRefusal(
                f"the approval of run {request.run!r} has lapsed at this party",
                "have its people approve it once more",
                code="plan-lapsed",
            )
        if request.has_lapsed:
            raise PrivacyRefusal(
                f"the approval of run {request.run!r} came back from saved evidence",
                "have its people approve it once more",
                code="plan-restored",
            )
        if not self.is_signed(request):
            raise PrivacyRefusal(
                f"the approval of run {request.run!r} is not signed by this party's key",
                "have its people approve it once more",
                code="not-signed",
            )

    def is_signed(self, request: Proposal) -> bool:
        """Returns True if the decision is signed by this party's key."""
        try:
            public_key = keys.identity(self._home).public_key()
            public_key.verify(bytes.fromhex(request.signature), request.statement)
        except (ValueError, TypeError, InvalidSignature):  # a signature that is no text was not written here
            return False
        return True

    def saved_files(self) -> dict[str, bytes]:
        """Returns every request, plan and signed sheet of this folder, by file name; logs what is no file."""
        with self._hold_lock():
            paths = sorted(path for saved_suffix in SAVED for path in self._folder.glob(f"*{saved_suffix}"))
            for path in paths:
                if not path.is_file():
                    log.error("%s: is not a file, and is left out; move it away", path)
            return {path.name: path.read_bytes() for path in paths if path.is_file()}

    def lapse_unbegun(self, begun: Collection[tuple[str, str]], *, at: float) -> list[str]:
        """Ends the approvals that people gave for another data set; returns the names of their runs.

        Args:
            begun: (run, hash (hex) of its manifest) of each run that was charged: it never meets another data set.
            at: time now, seconds since the epoch.
        """
        lapsed_runs = []
        with self._hold_lock():
            for proposal in self.all():
                if not (proposal.goes_on and proposal.approvals) or (proposal.run, proposal.manifest) in begun:
                    continue
                lapsed_proposal = replace(proposal, restored_s=_after_approvals(proposal, at), lapse=OTHER_DATA)
                self._write_instead(proposal, lapsed_proposal)
                lapsed_runs.append(proposal.run)
        return lapsed_runs

    def bring_back(self, files: Mapping[str, bytes], *, at: float) -> int:
        """Restores requests that are not here from what :meth:`saved_files` returned; returns their number.

        What is here stays, and what cannot be read is left out and logged. A refusal counts again, an approval does not
        (:attr:`Proposal.restored_s`).
        """
        restored_count = 0
        with self._hold_lock():
            missing_files = [
                file_name
                for file_name in files
                if file_name.endswith(".json") and not (self._folder / file_name).exists()
            ]
            for proposal_file in missing_files:
                proposal_path = self._folder / proposal_file
                try:
                    saved_proposal = _proposal_of(json_object(files[proposal_file], proposal_path), proposal_path)
                except ConfigurationError as error:
                    log.error("%s; it is not brought back", error.problem)
                    continue
                for saved_suffix in SAVED[1:]:
                    if (sibling_name := proposal_path.with_suffix(saved_suffix).name) in files:
                        replace_file(self._folder / sibling_name, files[sibling_name])
                is_replaced = saved_proposal.replaced or any(
                    plan.manifest != saved_proposal.manifest for plan in self.under(saved_proposal.run)
                )
                restored_proposal = replace(
                    saved_proposal, restored_s=_after_approvals(saved_proposal, at), replaced=is_replaced
                )
                self._write_instead(saved_proposal, restored_proposal)
                restored_count += 1
        return restored_count

    def check_words(self, request: Proposal, typed: str) -> None:
        """Raises PrivacyRefusal unless ``typed`` is the plan's words, which are computed anew, or its whole hash."""
        from undersong_protocol.agreement.manifest import plan_words, same_words

        if typed.strip().lower() == request.manifest or same_words(typed, plan_words(bytes.fromhex(request.manifest))):
            return
        look_again = f"look at it again: undersong-party preview {shell_word(request.run)}"
        if any(same_words(typed, earlier_plan.words) for earlier_plan in self.under(request.run)):
            raise PrivacyRefusal(
                f"these are the words of an earlier plan of run {request.run!r}; the plan was CHANGED since: "
                + printable("; ".join(request.changes)),
                look_again,
                code="earlier-words",
            )
        raise PrivacyRefusal(
            f"these are not the words of the plan that run {request.run!r} has now", look_again, code="other-words"
        )

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Holds the folder's lock, so that the daemon and a command never change the requests at the same time."""
        lock_descriptor = os.open(self._folder / ".lock", os.O_CREAT | os.O_RDWR, FILE_MODE)
        try:
            fcntl.flock(lock_descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock_descriptor)

    def _path_of(self, manifest: str) -> Path:
        return self._folder / f"{manifest}.json"


def manifest_hash(data: bytes) -> bytes:
    """Returns the hash (32 bytes) of a manifest's bytes, which need not be well-formed."""
    return tagged_hash("undersong manifest", data)


def check_decision(request: Proposal, decision: Decision) -> None:
    """Raises ConfigurationError if this decision about the plan is no longer possible."""
    run_words = f"run {request.run!r}"
    run_word = shell_word(request.run)
    ConfigurationError.raise_first(
        (
            request.ended_s,
            f"{run_words} has ended: what it released stays released, and nothing more of it is asked",
            "there is nothing left to decide; see `undersong-party ledger`",
            "run-ended",
        ),
        (
            decision == "approved" and request.decision in ("rejected", "revoked"),
            f"{run_words} was {request.decision}",
            "have the operator propose it under a new name",
            "was-refused",
        ),
        (
            decision == "approved" and request.suspended,
            f"{run_words} waits: {request.suspended}",
            "decide when it is asked again; the operator knows when",
            "suspended",
        ),
        (
            decision == "approved" and request.replaced,
            f"{run_words} has another plan by now",
            f"undersong-party preview {run_word}, and decide about that one",
            "replaced",
        ),
        (
            decision == "revoked" and request.decision not in ("approved", "revoked"),
            f"{run_words} was not approved",
            f"undersong-party reject {run_word}",
            "not-approved",
        ),
        (
            decision == "rejected" and request.decision == "approved" and not request.has_lapsed,
            f"{run_words} is approved",
            f"undersong-party revoke {run_word}",
            "is-approved",
        ),
    )


def _after_approvals(request: Proposal, at: float) -> float:
    """Returns ``at``, or the first moment after the approvals: one that was signed by a clock ahead is from before."""
    approved_s = max((approval.at_s for approval in request.people), default=0.0)
    return max(at, math.nextafter(approved_s, math.inf))


def _read_proposal(path: Path) -> Proposal:
    return _proposal_of(read_json(path), path)


def _proposal_of(value: Mapping[str, Any], path: Path) -> Proposal:
    """Returns the proposal in a file's JSON object. Raises ConfigurationError that names the file if it holds none."""
    try:
        deciders = tuple(PersonalDecision(**decider) for decider in value.get("people", ()))
        stored_proposal = Proposal(**{**value, "changes": tuple(value.get("changes", ())), "people": deciders})
        stored_times = (
            *(stored_proposal.received_s, stored_proposal.decided_s, stored_proposal.ended_s),
            *(stored_proposal.suspended_s, stored_proposal.previewed_s, stored_proposal.restored_s),
        )
        stored_figures = (
            stored_proposal.epsilon or 0.0,
            stored_proposal.delta,
            stored_proposal.parties,
            stored_proposal.number,
        )
        if (
            stored_proposal.decision not in get_args(Decision)
            or path.stem != stored_proposal.manifest
            or not isinstance(stored_proposal.run, str)
            or not all(isinstance(stored_number, (int, float)) for stored_number in (*stored_times, *stored_figures))
        ):
            raise TypeError
    except TypeError:
        raise ConfigurationError(
            f"{path}: is damaged or of an older version",
            "remove it; the coordinator proposes the run again",
            code="damaged",
        ) from None
    return stored_proposal
