"""``undersong verify``: recomputes the privacy cost of a published data set from its own papers, without a network.

The *papers* of a data set are its ``manifest.json`` and everything in it: the plan, the sums, and every party's receipt
and signature.

Everything is recomputed: the plan's sensitivities, noise and epsilon; everyone's signature under it; for every opened
sum the parties' signed statements on who is in it; every party's receipt, charge by charge. A fault names its place.

Consistent papers prove nothing about who wrote them: anybody can invent hospitals, give each a key and sign for
all of them. So a data set is confirmed only by a fingerprint that the caller has from elsewhere: the coordinator's,
whose signature covers the texts and certifies the keys of the parties it has enrolled; or a party's own, for what that
party has signed. A simulation claims no hospitals: that one program held all keys and wrote these files is shown by the
signatures of all its parties under them.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from undersong_common.canonical import canonical_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.printable import counted, finite, joined, noun, number, printable, shell_path, that_hold
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.spending import charged_of
from undersong_common.program.printed_page import PageSection, PrintedPage
from undersong_common.text.table import read_table
from undersong_protocol.agreement import words
from undersong_protocol.agreement.enrolment import party_fingerprint, same_fingerprint
from undersong_protocol.agreement.manifest import Manifest, plan_words
from undersong_protocol.agreement.participation import Participation
from undersong_protocol.agreement.receipt import Receipt, check_receipt, exposure
from undersong_protocol.secagg.evidence import OpenedBy, check_evidence
from undersong_server.release.files import (
    ARCHIVE_NAME,
    CARD_NAME,
    CORPUS_NAMES,
    ENROLLED,
    HASHED_NAMES,
    LEFT_OUT_NAMES,
    MANIFEST_NAME,
    OUTPUT_NAMES,
    ROWS_NAMES,
    SET_ASIDE_NAME,
    WORKSPACE_NAME,
    ArchiveStatement,
    LeftOut,
    PublisherSignature,
    check_simulation,
    guess_at_all_hospitals,
    participation_of,
    published_manifest,
    read_archive,
    read_signature,
    rows_file,
    sha256_of,
)
from undersong_server.release.own_score import OwnScore
from undersong_server.report.before_training import describe_labels
from undersong_server.report.card_facts import CardFacts, read_card_facts
from undersong_server.report.check_words import CHECK_WORDS, describe_files
from undersong_server.report.data import UNIT_WORDS
from undersong_server.report.guesses import Guesses
from undersong_server.report.terms import CORPUS_ALONE, UNTOLD, USE_LIMITS, CorpusTerms, mark_example, terms_of_plan
from undersong_server.runs.planning import register_named_statistics

Events = tuple[accounting.Event, ...]

# A value of another type or size than expected raises one of these, wherever it is first used.
MALFORMED = (KeyError, ValueError, TypeError, AttributeError, RecursionError, ArithmeticError, IndexError)


def verify(
    folder: Path, *, fingerprint: str | None = None, parties: Mapping[str, str] | None = None
) -> "PrivacyVerdict":
    """Checks a published folder.

    Args:
        fingerprint: of the coordinator that must have signed it, as it told its hospitals; None confirms nobody.
        parties: fingerprints by name of parties that must have taken part, as they themselves have told them.

    Raises ConfigurationError if there is nothing to check, PrivacyRefusal if the manifest itself cannot be read
    or its plan does not hold; every other fault stands in the verdict.
    """
    published_json = published_manifest(folder)
    fault_words: list[str] = []
    manifest, sums, receipts, signatures = _read_papers(folder, published_json)
    if published_json.get("manifest_hash") != manifest.hash.hex():
        fault_words.append(f"the manifest was changed: its hash is {manifest.hash.hex()[:16]}..., not the one stated")
    _check_plan(manifest)
    with _note_faults(fault_words, "the manifest's signatures"):
        manifest.check_signatures(signatures)
    opened_sums = _check_sums(manifest, sums, fault_words)
    receipt_by_party = _check_receipts(manifest, receipts, fault_words)
    final_receipts = {party_name: receipt for party_name, receipt in receipt_by_party.items() if receipt.closed}
    charged_events = _charged_events(manifest, opened_sums, final_receipts, fault_words)
    epsilon_by_party = {
        party_name: _price_events(manifest, events, manifest.plan.privacy.delta)
        for party_name, events in charged_events.items()
    }
    archive_statement = ArchiveStatement({})
    if (folder / ARCHIVE_NAME).exists():
        with _note_faults(fault_words, ARCHIVE_NAME):
            archive_statement = read_archive(folder, published_json)
    unchecked_files, outside_files = _check_files(folder, published_json, archive_statement.files, fault_words)
    signature = _publisher_signature(published_json, fingerprint, fault_words)
    is_simulated = False
    with _note_faults(fault_words, "the simulation's signatures"):
        is_simulated = check_simulation(published_json, manifest.roster)
    has_workspace = is_simulated and (folder / WORKSPACE_NAME).is_dir()
    if has_workspace:
        outside_files = tuple(file_name for file_name in outside_files if file_name != WORKSPACE_NAME)
    is_confirmed = signature is not None and same_fingerprint(fingerprint or "", signature.fingerprint)
    certified_parties = _certified_fingerprints(published_json) if is_confirmed else {}
    confirmed_parties = _confirm_parties(manifest, certified_parties, parties or {}, fault_words)
    largest_epsilon = max(epsilon_by_party.values(), default=0.0)
    epsilon_alone, guess_alone = exposure(manifest, final_receipts)
    if largest_epsilon > manifest.plan.privacy.epsilon * (1 + 1e-6):
        fault_words.append(f"the parties were charged epsilon {largest_epsilon:.6g}, more than the promised amount")
    sum_names = [planned_sum.name for planned_sum in manifest.plan.sums]
    return PrivacyVerdict(
        manifest=manifest,
        epsilon=largest_epsilon,
        spent=epsilon_by_party,
        alone=epsilon_alone,
        guess=_best_guess(charged_events.values(), largest_epsilon),
        guess_alone=guess_alone,
        voided=sum(len(receipt.voided) for receipt in receipt_by_party.values()),
        without_receipt=tuple(party_name for party_name in epsilon_by_party if party_name not in final_receipts),
        opened=opened_sums,
        unopened=tuple(sum_name for sum_name in sum_names if sum_name not in opened_sums),
        faults=tuple(fault_words),
        insecure=published_json.get("private") is False and math.isfinite(manifest.plan.privacy.epsilon),
        signature=signature,
        confirmed=is_confirmed,
        known=confirmed_parties,
        simulated=is_simulated,
        unchecked=unchecked_files,
        outside=outside_files,
        workspace=has_workspace,
        left_out=archive_statement.left_out,
        left_out_files=tuple(name for name in archive_statement.left_out_files if name in unchecked_files),
        other_signer=fingerprint is not None and signature is not None and not is_confirmed,
        stated_parties=tuple(party_name for party_name in confirmed_parties if party_name in (parties or {})),
        certified_parties=tuple(party_name for party_name in confirmed_parties if party_name in certified_parties),
        lacks_corpus=not any((folder / rows_name).exists() for rows_name in ROWS_NAMES),
        has_aside=(folder / SET_ASIDE_NAME).exists(),
        file_hash=sha256_of(folder / MANIFEST_NAME) or "",
        authors=() if fault_words else _read_authors(folder),
        card=CardFacts() if fault_words or CARD_NAME in outside_files else _read_card(folder),
    )


def _read_papers(
    folder: Path, published: Mapping[str, Any]
) -> tuple[Manifest, dict[str, Any], dict[str, Any], dict[str, bytes]]:
    """Returns the manifest, the sums by name, and receipts and signatures by party, as published; checks none of them.

    Raises PrivacyRefusal if one of them is missing or malformed.
    """
    try:
        manifest = Manifest.from_bytes(canonical_json(published["manifest"]))
        signatures = {
            str(party): bytes.fromhex(signature_hex) for party, signature_hex in published["signatures"].items()
        }
        return manifest, dict(published["sums"]), dict(published["receipts"]), signatures
    except MALFORMED:
        raise PrivacyRefusal(f"{folder}: manifest.json is not the manifest of a run", REMEDY) from None


def _check_plan(manifest: Manifest) -> None:
    """Raises PrivacyRefusal for a plan that does not hold: nothing can be priced by it."""
    register_named_statistics((planned_sum.statistic, planned_sum.source) for planned_sum in manifest.plan.sums)
    try:
        manifest.verify()
    except UndersongError as error:
        raise PrivacyRefusal(f"the plan: {printable(error.problem, 600)}", REMEDY, code=error.code) from None
    except MALFORMED:
        raise PrivacyRefusal("the plan: cannot be read", REMEDY) from None


@contextmanager
def _note_faults(faults: list[str], place: str, party: str = "") -> Iterator[None]:
    """Notes as a fault of ``place`` what the block raises, or that something there cannot be read.

    Args:
        party: name that follows ``place`` in the fault, and is cut from the begin of the error's own words.
    """
    try:
        yield
    except UndersongError as error:
        faults.append(f"{place}{party}: {error.problem.removeprefix(f'{party}: ')}")
    except MALFORMED:
        faults.append(f"{place}{party}: cannot be read")


def _certified_fingerprints(published: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fingerprints by party that the coordinator's signature covers; empty if they cannot be read."""
    enrolled_fingerprints = published.get(ENROLLED, {})
    return enrolled_fingerprints if isinstance(enrolled_fingerprints, Mapping) else {}


def _confirm_parties(
    manifest: Manifest,
    certified_fingerprints: Mapping[str, Any],
    stated_fingerprints: Mapping[str, str],
    faults: list[str],
) -> tuple[str, ...]:
    """Returns the parties whose keys a confirmed coordinator has enrolled, or the caller has named.

    Args:
        certified_fingerprints: those that a confirmed coordinator has signed; empty if no coordinator is confirmed.
    """
    roster_fingerprints = {member.name: party_fingerprint(member.name, member.identity) for member in manifest.roster}
    for fingerprint_source, fingerprints in (
        ("the coordinator has enrolled", certified_fingerprints),
        ("was stated", stated_fingerprints),
    ):
        for party_name, fingerprint in fingerprints.items():
            if party_name not in roster_fingerprints:
                faults.append(f"{party_name}: takes no part in this run")
            elif not same_fingerprint(str(fingerprint), roster_fingerprints[party_name]):
                faults.append(
                    f"{party_name}: has signed with another key ({roster_fingerprints[party_name]}) than the one that"
                    f" {fingerprint_source}"
                )
    return tuple(
        party_name
        for party_name in roster_fingerprints
        if party_name in certified_fingerprints or party_name in stated_fingerprints
    )


def _publisher_signature(
    published: Mapping[str, Any], fingerprint: str | None, faults: list[str]
) -> PublisherSignature | None:
    signature = None
    with _note_faults(faults, "the coordinator's signature"):
        signature = read_signature(published)
        if fingerprint is not None and (signature is None or not same_fingerprint(fingerprint, signature.fingerprint)):
            if signature is None:
                signer = "nobody"
            else:
                signer = f"a coordinator with the fingerprint {signature.fingerprint}"
            raise PrivacyRefusal(f"{signer} signed manifest.json, not the one that was stated", REMEDY)
    return signature


def _check_sums(manifest: Manifest, sums: Mapping[str, Any], faults: list[str]) -> "dict[str, ProvedSum]":
    opened_sums: dict[str, ProvedSum] = {}
    for sum_name, sum_facts in sums.items():
        with _note_faults(faults, f"private sum {sum_name}"):
            attempt_number = int(sum_facts["attempt"])
            parameters = manifest.sum_parameters(sum_name, attempt_number)
            proved_survivors = check_evidence(parameters, bytes.fromhex(sum_facts["evidence"]))
            if list(proved_survivors.survivors) != list(sum_facts["survivors"]):
                raise PrivacyRefusal("the sum's survivors are not those that the parties signed for", REMEDY)
            if sum_facts["scale"] != manifest.plan[sum_name].scale:
                raise PrivacyRefusal("the sum's scale is not the plan's", REMEDY)
            dropped_count = parameters.size - len(proved_survivors.survivors)
            plan = parameters.noise_plan
            possible_variances = [
                float(plan.opened_variance(dropped_count, unopened_count))
                for unopened_count in range(len(proved_survivors.survivors) + 1)
            ]
            if not any(math.isclose(sum_facts["variance"], variance, rel_tol=1e-9) for variance in possible_variances):
                raise PrivacyRefusal("the variance of the sum's noise is not one that the plan allows", REMEDY)
            opened_sums[sum_name] = ProvedSum(attempt_number, proved_survivors)
    return opened_sums


def _check_receipts(manifest: Manifest, receipts: Mapping[str, Any], faults: list[str]) -> dict[str, Receipt]:
    receipt_by_party: dict[str, Receipt] = {}
    for party, receipt in receipts.items():
        with _note_faults(faults, "receipt of ", party):
            body_bytes = receipt["body"].encode("utf-8")
            signature = bytes.fromhex(receipt["signature"])
            receipt_by_party[party] = check_receipt(manifest, party, body_bytes, signature)
    return receipt_by_party


def _charged_events(
    manifest: Manifest, opened_sums: "Mapping[str, ProvedSum]", final_receipts: Mapping[str, Receipt], faults: list[str]
) -> dict[str, Events]:
    """Returns the charged events by party; every vector in an opened sum must have been charged by its party.

    Args:
        final_receipts: maps each party to the receipt after which it answers no more in the run.
    """
    plan = manifest.plan
    if not math.isfinite(plan.privacy.epsilon):
        return {member.name: () for member in manifest.roster}
    events_by_party: dict[str, Events] = {}
    plan_events = plan.charged_events()
    for member in manifest.roster:
        receipt = final_receipts.get(member.name)
        if receipt is None:
            # Papers may have been left out: sums that were opened, and this party's part in them.
            events_by_party[member.name] = tuple(plan_events)
        else:
            own_sums = (
                (sum_name, opened_sum.attempt, opened_sum.by.question.hex())
                for sum_name, opened_sum in opened_sums.items()
                if member.name in opened_sum.by.survivors
            )
            faults.extend(receipt.uncharged(own_sums))
            charged_events = [plan[charge.query].event() for charge in receipt.counted]
            if receipt.charges:
                events_by_party[member.name] = tuple(charged_of(charged_events, plan_events))
            else:
                events_by_party[member.name] = ()
    return events_by_party


def _price_events(manifest: Manifest, events: Events, delta: float) -> float:
    """Returns the epsilon that charged events cost at ``delta``; inf if the run promises nothing."""
    if not math.isfinite(manifest.plan.privacy.epsilon):
        return math.inf
    if events:
        return accounting.epsilon(events, delta)
    return 0.0


def _best_guess(event_lists: Iterable[Events], epsilon: float) -> float | None:
    """Returns the chance of the best guess about one unit of any party; None if nothing bounds it."""
    if not math.isfinite(epsilon):
        return None
    return max((accounting.best_guess(events) for events in set(event_lists) if events), default=0.5)


def _check_files(
    folder: Path, published: Mapping[str, Any], archive_hashes: Mapping[str, str], faults: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compares files with their hashes; returns the names of missing files, and of files that no signed list names.

    Args:
        archive_hashes: hashes of the files that an archive has beside the published ones, or instead of them.
    """
    file_names = sorted(os.listdir(folder))
    hashes = published.get("files", {})
    if not isinstance(hashes, Mapping) or not set(hashes) <= set(HASHED_NAMES):
        faults.append(f"{MANIFEST_NAME}: its list of files cannot be read")
        return (), ()
    for hashed_name in HASHED_NAMES:
        if hashed_name not in file_names:
            continue
        if hashed_name in archive_hashes:
            continue  # The archive's own file; it is compared below.
        if hashed_name in hashes:
            if sha256_of(folder / hashed_name) != hashes[hashed_name]:
                faults.append(CHECK_WORDS["not the run's"].format(file=hashed_name))
        elif hashed_name in CORPUS_NAMES:
            faults.append(f"{hashed_name}: {MANIFEST_NAME} names no such file")
    for hashed_name, digest in archive_hashes.items():
        if hashed_name in file_names and sha256_of(folder / hashed_name) != digest:
            faults.append(CHECK_WORDS["not the archive's"].format(file=hashed_name))
    archive = {*archive_hashes, ARCHIVE_NAME} if archive_hashes else set()
    unnamed_files = (file_name for file_name in file_names if file_name not in {*hashes, *archive, MANIFEST_NAME})
    missing_files = (
        file_name for file_name in dict.fromkeys([*hashes, *archive_hashes]) if file_name not in file_names
    )
    return tuple(missing_files), tuple(unnamed_files)


def _read_authors(folder: Path) -> tuple[str, ...]:
    """Returns the generators that wrote the rows of the corpus; () if these are not here or malformed."""
    try:
        return tuple(dict.fromkeys(read_table(rows_file(folder), "generator").texts))
    except ConfigurationError:
        return ()


def _read_card(folder: Path) -> CardFacts:
    """Returns the facts of a card whose hash :func:`_check_files` has compared; those of none if it is not here."""
    card_path = folder / CARD_NAME
    if not card_path.is_file():
        return CardFacts()
    return read_card_facts(card_path.read_text(encoding="utf-8", errors="replace"))


REMEDY = "the files are not those that the run wrote: get a fresh copy from where they are published"
OTHER_SIGNER_REMEDY = (
    "either the fingerprint was typed or told wrongly, or these files are another's: compare it with a hospital that"
    " took part, and do not use the files before it is the same"
)
NOT_CHECKED = (
    "not checked: how good the texts are. Private score, panel score, distances and whether the records helped, on card"
    " and report, are their makers' word, as the records and the test file behind them are not here; a test file of"
    " your own measures a panel score (--test FILE)"
)
CHECKED_ON_TEST = (
    "how good the texts are was checked on this test file alone, by the panel score. Private score, distances and"
    " whether the records helped, on card and report, are their makers' word, as the records behind them are not here"
)
ASK_HOSPITAL = "Have one of its hospitals tell you the true fingerprint, and state it (--fingerprint)."
LONGEST_LIST = 40  # largest number of faults or names on a screen; JSON has all of them


@dataclass(frozen=True)
class ProvedSum:
    """One private sum of the data set: the attempt that opened it, and who is in it and signed for that."""

    attempt: int
    by: OpenedBy


@dataclass(frozen=True)
class PrivacyVerdict:
    """The recomputed privacy cost of a data set, and every fault of its papers.

    Attributes:
        manifest: the terms that every party has signed: the run's name, its plan with the promise, its parties.
        epsilon: epsilon of the whole data set for any one privacy unit at any party; inf if it is not private.
        spent: epsilon by party, in the roster's order, from its final receipt. A party ``without_receipt``, or whose
            receipt does not end the run, has the epsilon of the whole plan.
        alone: the largest epsilon of any party if all others collude: of every vector that left it, with its own share
            of the noise. A void attempt counts too, since colluding parties could have signed it void.
        guess, guess_alone: largest chance of a right guess about one unit at ``epsilon`` and at ``alone``; None if
            unbounded.
        voided: number of vectors that left a party in an attempt that the parties signed as void (nothing was opened).
        faults: sentences on everything that does not hold; the figures mean nothing unless this is empty.
        insecure: True if the data set states that its noise came from a fixed seed.
        signature: the coordinator that signed the papers and the hashes of the files; None if nobody did.
        confirmed: True if the fingerprint of that coordinator is the one that the caller has stated.
        simulated: True if every party's key signed the papers and the hashes of the files: one program held all keys.
        known: parties whose keys are certified by that signature, or have the fingerprint that the caller has stated.
        unchecked: names of the data set's files that are missing in the folder.
        outside: names of files in the folder that the manifest does not list.
        workspace: True if the folder also holds the files that a simulation works with.
        left_out: number of texts that the archive's corpus lacks, as the coordinator signed it; None if it lacks none.
        left_out_files: those of ``unchecked`` that the operator left out of the archive, as the coordinator signed it.
        other_signer: True if a coordinator signed it whose fingerprint is not the one that the caller has stated.
        stated_parties: those of ``known`` whose own fingerprint the caller has stated.
        certified_parties: those of ``known`` whose keys the coordinator's signature names.
        lacks_corpus: True if no file with rows of the corpus is there.
        has_aside: True if a file of texts that were set aside is there.
        file_hash: SHA-256 of manifest.json, which holds more than the signed plan; "" if the file was not read.
        authors: generators that wrote the corpus, by its rows; () if these are not here or cannot be read.
        card: facts of the card, if it is there and its hash is the signed one.
        is_own: True if the coordinator that has signed it checks it itself, so that nobody has stated a fingerprint.
    """

    manifest: Manifest
    epsilon: float
    spent: Mapping[str, float]
    alone: float
    guess: float | None
    guess_alone: float | None
    voided: int
    without_receipt: tuple[str, ...]
    opened: Mapping[str, ProvedSum]
    unopened: tuple[str, ...]
    faults: tuple[str, ...]
    insecure: bool
    signature: PublisherSignature | None
    confirmed: bool
    known: tuple[str, ...]
    simulated: bool
    unchecked: tuple[str, ...]
    outside: tuple[str, ...]
    workspace: bool
    left_out: LeftOut | None = None
    left_out_files: tuple[str, ...] = ()
    other_signer: bool = False
    stated_parties: tuple[str, ...] = ()
    certified_parties: tuple[str, ...] = ()
    lacks_corpus: bool = False
    has_aside: bool = False
    file_hash: str = ""
    authors: tuple[str, ...] = ()
    card: CardFacts = field(default_factory=CardFacts)
    is_own: bool = False

    @property
    def operator(self) -> str:
        """Name and contact of the operator, as every party has signed them; "" if the plan states nobody."""
        operator, contact = (str(self.manifest.task.get(key) or "") for key in ("operator", "contact"))
        return words.run_by(operator, mark_example(contact))

    @property
    def publication(self) -> str:
        """Place and name of the publication, as every party has signed them; "" if they are not stated."""
        publication_words = str(self.manifest.task.get("publication") or "")
        shown_words = words.publication(publication_words)
        for address in (
            words.publication_place(publication_words),
            words.publication_part(publication_words, "contact"),
        ):
            shown_words = shown_words.replace(address, mark_example(address), 1) if address else shown_words
        return printable(shown_words, 600)

    @property
    def terms(self) -> CorpusTerms:
        """The terms of the corpus by the signed plan, and by the card if its hash is the signed one."""
        return terms_of_plan(
            self.manifest.task,
            self.authors,
            invented_records=self.card.invented_records,
            statements=self.card.sources,
        )

    @property
    def guesses(self) -> Guesses | None:
        """How often a guess who took part is right, recomputed from the manifest; None without noise or with faults."""
        plan = self.manifest.plan
        if self.insecure or self.faults:
            return None
        is_bounded = plan.sums and math.isfinite(plan.epsilon_if_all_others_collude())
        return Guesses(
            plan.privacy,
            UNIT_WORDS[plan.privacy.unit],
            plan.quorum.parties,
            self.guess,
            guess_at_all_hospitals(plan),
            accounting.best_guess(plan.alone_events()) if is_bounded else None,
            self.guess_alone,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of card and report on invented records, and on what a receiver may do; () if nothing counts."""
        if self.faults:
            return ()
        terms = self.terms
        no_guarantee = self.insecure or not math.isfinite(self.epsilon)
        opening = that_hold(
            (terms.invented_records, terms.describe_demonstration()),
            (no_guarantee, words.NO_GUARANTEE),
        )
        return (*opening, *([] if self.is_own else self._state_permission()))  # Its makers need no permission.

    def _state_permission(self) -> list[str]:
        """Says if a receiver may use the corpus, and whose texts it holds, which only its rows tell."""
        if self.lacks_corpus:
            return [f"May I use it? {UNTOLD}", f"  {USE_LIMITS}"]
        terms = self.terms
        return [
            f"May I use it? {terms.allow()}",
            *([f"  {CORPUS_ALONE}"] if self.has_aside else []),
            f"  {USE_LIMITS}",
            *(f"  {sentence}" for sentence in (*terms.quote_sources(), terms.name_sources()) if sentence),
        ]

    @property
    def is_only_signed_by_another(self) -> bool:
        """True if the only fault is that another coordinator than the stated one signed the manifest."""
        return self.other_signer and len(self.faults) == 1

    @property
    def strangers(self) -> tuple[str, ...]:
        """Names of the parties whose identity neither the coordinator's signature nor the caller confirms."""
        return tuple(party for party in self.spent if party not in self.known)

    @property
    def holds(self) -> bool:
        """True if the papers hold and a file with rows of the corpus is there; its hash is then the signed one."""
        return self.papers_hold and not self.lacks_corpus

    @property
    def papers_hold(self) -> bool:
        """True if there is no fault and the publisher is confirmed.

        A federation's data set has to be signed by the stated coordinator, for its enrolled parties. A simulation
        claims no hospitals, and is signed by all its parties.
        """
        return not self.faults and (self.simulated or (self.confirmed and not self.strangers))

    @property
    def signer(self) -> str:
        """Name of the coordinator that signed, by its own word; "" without a signature."""
        if self.signature is None:
            return ""
        return printable(self.signature.name, 63)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the published files that are not there, without those that the operator left out.

        An archive that lacks texts also lacks the files that show or number them.
        """
        chosen_names = {*self.left_out_files, *(() if self.left_out is None else LEFT_OUT_NAMES)}
        return tuple(name for name in self.unchecked if name not in chosen_names)

    @property
    def participation(self) -> Participation:
        """Returns who is in which opened sum, by the parties' signatures."""
        return participation_of(
            self.manifest, {sum_name: opened_sum.by.survivors for sum_name, opened_sum in self.opened.items()}
        )

    def to_json(self) -> dict[str, Any]:
        promised_privacy = self.manifest.plan.privacy
        return {
            "run": self.manifest.run,
            "signed_plan_sha256": self.manifest.hash.hex(),
            "manifest_json_sha256": self.file_hash,
            "kind": "simulation" if self.simulated else "federation",
            "holds": self.holds,
            "consistent": not self.faults,
            "coordinator_confirmed": self.confirmed,
            "parties_confirmed": list(self.stated_parties),
            "parties_certified_by_coordinator": list(self.certified_parties),
            "faults": list(self.faults),
            "warnings": [warning.strip() for warning in self.warnings],
            "private": not self.insecure and math.isfinite(self.epsilon),
            "epsilon": finite(self.epsilon),
            "delta": promised_privacy.delta,
            "promised_epsilon": finite(promised_privacy.epsilon),
            "epsilon_if_all_others_collude": finite(self.alone),
            "best_guesses": [
                {"whose": whose, "right_at_most": right}
                for whose, right in (self.guesses.chances.items() if self.guesses else ())
            ],
            "void_vectors": self.voided,
            "unit": UNIT_WORDS[promised_privacy.unit],
            "parties": list(self.spent),
            "coordinator": None if self.signature is None else asdict(self.signature),
            "epsilon_by_party": {party: finite(party_epsilon) for party, party_epsilon in self.spent.items()},
            "without_receipt": list(self.without_receipt),
            "sums": [
                {
                    "name": sum_name,
                    "attempt": opened_sum.attempt,
                    "survivors": list(opened_sum.by.survivors),
                    "signers": list(opened_sum.by.signers),
                }
                for sum_name, opened_sum in self.opened.items()
            ],
            "absences": list(self.participation.absences),
            "planned_but_not_opened": list(self.unopened),
            "files_not_there": list(self.unchecked),
            "files_left_out": list(self.left_out_files),
            "files_outside": list(self.outside),
            "texts_left_out": 0 if self.left_out is None else self.left_out.texts,
        }

    def lines(self, own_score: OwnScore | None = None) -> list[str]:
        """The verdict as a person reads it, with the score on a test file of the reader's if it was measured."""
        score_lines = self._describe_score(own_score)
        if self.faults:
            return ["NOT VERIFIED:", *self._describe_faults(), *score_lines, *self.conclusion()]
        integrity_words = "its papers fit together"
        if self.papers_hold:
            integrity_words = "every signature, charge and statement holds"
        nominal_words = ""
        if self.insecure:
            nominal_words = f"{words.NOMINAL}, for the noise protects nobody: "
        promised_privacy = self.manifest.plan.privacy
        questions = words.questions(self.manifest.plan)
        verdict_statements = that_hold(
            (True, f"run '{printable(self.manifest.run)}'"),
            (True, f"{words.SIGNED_PLAN} {self.manifest.hash.hex()[:16]}...: {integrity_words}"),
            (self.file_hash, f"the file {MANIFEST_NAME}, SHA-256 {self.file_hash[:16]}..., has plan and papers in it"),
            (
                True,
                f"{nominal_words}epsilon {self.epsilon:.6g} at delta {number(promised_privacy.delta)} for one"
                f" {UNIT_WORDS[promised_privacy.unit]}"
                f" (promised: {promised_privacy.epsilon:.6g}), add/remove neighbours",
            ),
            (
                math.isfinite(self.alone),
                f"{nominal_words}epsilon {self.alone:.6g} against the coordinator and all other hospitals together,"
                f" {words.AS_IT_RAN}",
            ),
            *((True, line) for line in self._state_worst_cases()),
            (
                self.voided,
                f"void, by the parties' word: {self.voided} vectors that had left; only the second figure counts them",
            ),
            (self.confirmed, f"signed by the coordinator '{self.signer}', as you stated it"),
            (self.operator, f"run by {self.operator}"),
            (self.publication, f"where it is published: {self.publication}"),
            (True, f"each hospital was asked {words.asked(questions, 'its')}"),
            *((True, f"  {printable(question)}") for question in words.further(questions, "its")),
            (True, f"took part: {', '.join(self.participation.names)}"),
            *((True, f"  {sentence}") for sentence in self.participation.sentences),
            *((True, self._describe_sum(sum_name, opened_sum.by)) for sum_name, opened_sum in self.opened.items()),
            (self.unopened, f"planned and never opened: {_quote_names(self.unopened)}"),
            (
                self.without_receipt,
                f"no final receipt of {', '.join(self.without_receipt)}: priced as if the whole plan was spent",
            ),
            (
                self.workspace,
                f"'{WORKSPACE_NAME}' is this simulation's own folder, with its keys and ledgers: no paper covers it,"
                " and nobody else needs it",
            ),
            (self.left_out is not None, self._describe_left_out()),
            (self.left_out_files, CHECK_WORDS["left out"].format(files=", ".join(self.left_out_files))),
            (self.outside, f"outside the papers, so of unknown origin: {_quote_names(self.outside)}"),
            (self.insecure, "NOT PRIVATE: by its own word the noise came from a fixed seed (tests)"),
            (
                math.isinf(self.epsilon) and not self.insecure,
                "NOT PRIVATE: the run promises nothing (epsilon is infinite)",
            ),
        )
        return [
            *self._state_doubts(),
            *self.warnings,
            *verdict_statements,
            *(score_lines or [NOT_CHECKED]),
            *self.conclusion(),
        ]

    def _describe_score(self, own_score: OwnScore | None) -> list[str]:
        """Says how good the texts are on the reader's test file, and what stays unchecked; [] without such a file."""
        if own_score is None:
            return []
        if own_score.score is None:
            return [own_score.sentence, *([] if self.faults else [NOT_CHECKED])]
        score_lines = [own_score.sentence, f"  {describe_labels(own_score.by_label).strip()}"]
        return score_lines if self.faults else [*score_lines, f"  {own_score.comparison}", CHECKED_ON_TEST]

    def _describe_faults(self) -> list[str]:
        """Lists the faults, at most LONGEST_LIST of them, and what the reader can do."""
        fault_lines = [f"  {printable(fault_line, 600)}" for fault_line in self.faults[:LONGEST_LIST]]
        remedy = REMEDY
        if self.is_only_signed_by_another:
            remedy = OTHER_SIGNER_REMEDY
        return [*fault_lines, *_count_rest(self.faults), remedy]

    def _state_worst_cases(self) -> list[str]:
        """States what the plan allows against all others, and the table of guesses; [] if nothing is promised."""
        plan = self.manifest.plan
        if self.insecure or self.guess_alone is None:
            return []
        case_lines = []
        epsilon_alone = plan.epsilon_if_all_others_collude()
        if plan.sums and math.isfinite(epsilon_alone):
            case_lines.append(
                f"epsilon {epsilon_alone:.6g} against the coordinator and all other hospitals together,"
                f" {words.AS_PLANNED}"
            )
            case_lines.append(f"  {words.PLANNED}")
        if self.guesses is not None:
            case_lines.append("best guesses, instead of 50 of 100 cases by tossing a coin:")
            case_lines += [f"  {whose}: right in at most {right} of 100 cases" for whose, right in self.guesses.rows]
            case_lines += [f"  {words}" for words in (self.guesses.average_words,) if words]
        return case_lines

    def conclusion(self) -> list[str]:
        """The last three lines: are the files complete, who made them, and what privacy is promised."""
        signer = ""
        if self.signer:
            signer = f"the coordinator '{self.signer}'"
        if self.faults:
            files_line = CHECK_WORDS["changed"].format(faults=counted(len(self.faults), "fault"), place="above")
            if self.missing:
                files_line += CHECK_WORDS["also missing"].format(count=len(self.missing), files=", ".join(self.missing))
            signer_words = CHECK_WORDS["by nobody"]
            if self.is_only_signed_by_another:
                files_line = CHECK_WORDS["other signer"]
                signer_words = CHECK_WORDS["by another"].format(signer=signer)
            promise_words = "none that counts"
        else:
            files_line = self._describe_files()
            if self.simulated:
                signer_words = "a simulation, which signed them itself"
            elif self.papers_hold and self.is_own:
                signer_words = (
                    f"{signer}, by its own key; its {counted(len(self.spent), 'hospital')} as it enrolled them"
                )
            elif self.papers_hold:
                signer_words = f"{CHECK_WORDS['by stated'].format(signer=signer)}; {self._describe_keys()}"
                signer_words += "" if self.terms.whom_to_ask else CHECK_WORDS["unconfirmed"]
            else:
                signer_words = CHECK_WORDS["by own word" if signer else "unsigned"].format(signer=signer)
                signer_words += self._describe_stated_parties()
            delta = self.manifest.plan.privacy.delta
            unit_words = UNIT_WORDS[self.manifest.plan.privacy.unit]
            if self.manifest.plan.privacy.unit == "user":
                unit_words += " of one hospital"
            is_private = math.isfinite(self.epsilon) and not self.insecure
            promise_words = "none: NOT PRIVATE"
            if is_private:
                promise_words = (
                    f"epsilon {self.epsilon:.6g} at delta {number(delta)} for one {unit_words}, {words.AS_IT_RAN}"
                )
                promise_words += "" if self._is_maker_shown else ", if genuine"
        return [f"Files: {files_line}.", f"By: {signer_words}.", f"Promise: {promise_words}."]

    @property
    def _is_maker_shown(self) -> bool:
        """True if the maker is confirmed, by a fingerprint that somebody could have told the reader."""
        return self.papers_hold and (self.simulated or self.is_own or bool(self.terms.whom_to_ask))

    def _describe_stated_parties(self) -> str:
        """Says what the stated fingerprints of hospitals show where the coordinator is not confirmed; else ""."""
        if not self.stated_parties:
            return ""
        signed_words = "has signed the plan" if len(self.stated_parties) == 1 else "have signed the plan"
        return (
            f"; {joined(self.stated_parties)} {signed_words}, by the fingerprint that you stated, and no text, card or"
            " report"
        )

    def _describe_files(self) -> str:
        left_out_words = ""
        if self.left_out is not None:
            left_out_words = f"{self.left_out.words} that the coordinator left out of the corpus afterwards"
        return describe_files(
            self.missing, outside_count=len(self.outside), left_out=left_out_words, lacks_corpus=self.lacks_corpus
        )

    def _describe_keys(self) -> str:
        """Says who confirms the hospitals' keys: the coordinator, or a hospital itself.

        Only if the papers hold.
        """
        hospitals = counted(len(self.spent), "hospital")
        if not self.stated_parties:
            return f"its {hospitals} by its word (--party checks one by the hospital's own)"
        if len(self.stated_parties) == len(self.spent):
            return f"its {hospitals} by the fingerprints that you stated"
        return f"its {hospitals} by its word, but for {joined(self.stated_parties)}, by the fingerprint that you stated"

    def _describe_left_out(self) -> str:
        """Says which texts an archive lacks, with which files, and what counts them all the same."""
        if self.left_out is None:
            return ""
        files = joined([name for name in self.unchecked if name in LEFT_OUT_NAMES])
        return (
            f"left out by the coordinator after the run: {self.left_out.words}{f', with {files}' if files else ''};"
            " papers and scores are of all texts"
        )

    def _describe_sum(self, name: str, opened_by: OpenedBy) -> str:
        absent_parties = sorted(set(self.spent) - set(opened_by.survivors))
        absence_words = ""
        if absent_parties:
            absence_words = f", without {', '.join(absent_parties)}"
        return (
            f"  the sum of {counted(len(opened_by.survivors), 'hospital')}{absence_words};"
            f" {len(opened_by.signers)} signed for it: '{printable(name)}', {self._sum_titles[name]}"
        )

    @cached_property
    def _sum_titles(self) -> Mapping[str, str]:
        return words.sum_titles(self.manifest.plan.sums)

    def _state_doubts(self) -> list[str]:
        """Lists what the manifest does not prove; empty if everything of a federation is confirmed."""
        if not self.lacks_corpus:
            return self._doubt_makers()
        missing_words = f"NOTHING SHOWN OF THE TEXTS: neither {' nor '.join(ROWS_NAMES)} is here to be checked."
        return [*self._doubt_makers(), missing_words]

    def _doubt_makers(self) -> list[str]:
        """Lists what the manifest does not prove about the maker; empty if a federation's coordinator is confirmed."""
        if self.simulated:
            return [
                "SIMULATION, CONFIRMED: one program held every party's key and signed these files and papers with all.",
                "  No hospital and no coordinator stands behind it: who ran it, and on which records, no paper shows.",
            ]
        if self.papers_hold:
            return []
        doubt_lines = ["NOT CONFIRMED: the papers fit together, and nothing shows yet who made them."]
        if self.signature is None:
            doubt_lines += [
                "  No coordinator has signed them, nor a simulation. Whoever made this folder may have invented",
                "  its hospitals, with their keys, signatures and receipts, and may have changed every text.",
            ]
        elif not self.confirmed:
            doubt_lines += [
                f"  A coordinator with the fingerprint {self.signature.fingerprint} has signed them;",
                f"  it calls itself '{self.signer}'. Anybody can make one of that name.",
                f"  {ASK_HOSPITAL if self.terms.whom_to_ask else CHECK_WORDS['nobody confirms']}",
                f"  {CHECK_WORDS['copied']}",
            ]
        if self.known:
            doubt_lines.append(f"  By their fingerprints these are who they are called: {', '.join(self.known)}.")
        if self.strangers:
            doubt_lines.append(f"  Only their names are known of {', '.join(self.strangers)}.")
        return doubt_lines


def _quote_names(names: Sequence[str]) -> str:
    """Writes names that a stranger chose: each in quotes, in ASCII, so that no letter looks like another."""
    quoted_names = [
        f"'{printable(name.encode('ascii', 'backslashreplace').decode(), 120)}'" for name in names[:LONGEST_LIST]
    ]
    return ", ".join(quoted_names) + "".join(_count_rest(names))


def _count_rest(names: Sequence[str]) -> list[str]:
    if len(names) > LONGEST_LIST:
        return [f"  and {len(names) - LONGEST_LIST} more"]
    return []


# The dossier: a data set as a privacy officer files it: what flowed, what it cost, what was checked, what is kept.
def dossier_page(
    folder: Path, verdict: PrivacyVerdict, *, fingerprint: str | None, audit: Mapping[str, Any] | None
) -> PrintedPage:
    """Renders the dossier of a published folder, a page for a privacy officer.

    Args:
        verdict: what :func:`verify` found there.
        fingerprint: the coordinator's fingerprint that the caller has stated to it.
        audit: what ``undersong audit --json`` wrote, if there is one.
    """
    manifest = verdict.manifest
    unit_words = UNIT_WORDS[manifest.plan.privacy.unit]
    plan_name = words.plan_name(manifest.run, plan_words(manifest.hash))
    return PrintedPage(
        f"Dossier of the data set {printable(str(manifest.task['name']), 120)!r}, run {printable(manifest.run, 120)!r}",
        (
            *_faults_section(verdict),
            _purpose_section(verdict),
            _flow_section(manifest),
            _sums_section(verdict),
            _guarantee_section(verdict, unit_words),
            PageSection(
                "Assumptions",
                points=impact.assumptions(
                    manifest.plan.quorum.colluders, manifest.plan.quorum.parties, manifest.plan.privacy.unit
                ),
            ),
            impact.audit_section(audit),
            PageSection("What is kept, and erased", table=words.KEPT),
            _parties_section(verdict),
            _files_section(folder, published_manifest(folder), verdict),
            _steps_section(folder, verdict, fingerprint),
            impact.for_the_assessment(unit_words, post_quantum=manifest.plan.quorum.post_quantum),
        ),
        note="Everything on it is recomputed from the published papers, as `undersong verify` does.",
        signature=f"{plan_name}. Filed for:",
        footer=plan_name,
    )


def _faults_section(verdict: PrivacyVerdict) -> list[PageSection]:
    if not verdict.faults:
        return []
    fault_points = tuple(printable(fault_sentence, 600) for fault_sentence in verdict.faults)
    return [
        PageSection("NOT VERIFIED: the papers do not hold, and nothing below counts", points=fault_points, loud=True)
    ]


def _purpose_section(verdict: PrivacyVerdict) -> PageSection:
    manifest = verdict.manifest
    task, unstated_words = manifest.task, "its operator has not stated it"
    if verdict.simulated:
        unsigned_words = "a simulation: one program played every hospital"
    else:
        unsigned_words = "nobody has signed it"
    if verdict.signature is None:
        publisher_words = unsigned_words
    else:
        publisher_words = printable(verdict.signature.name, 63)
    if verdict.signature is not None:
        publisher_words += f", fingerprint {verdict.signature.fingerprint}"
    return PageSection(
        "What it is",
        figures=(
            ("purpose", printable(str(task.get("purpose") or unstated_words), 600)),
            ("run by", verdict.operator or unstated_words),
            ("signed by", publisher_words),
            (
                words.description_label([*map(str, task.get("generators") or ())]),
                printable(str(task.get("description") or unstated_words), 600),
            ),
            ("labels", printable(", ".join(map(str, task.get("labels") or ())), 600) or "none"),
            (
                "who writes the texts",
                printable(words.join_writers([*map(str, task.get("generators") or ())]) or unstated_words, 600),
            ),
            (
                "where it is published",
                verdict.publication or unstated_words,
            ),
            ("method", printable(manifest.method, 120)),
            (words.SIGNED_PLAN, manifest.hash.hex()),
        ),
    )


def _flow_section(manifest: Manifest) -> PageSection:
    quorum = manifest.plan.quorum
    questions = words.questions(manifest.plan)
    writers = tuple(map(str, manifest.task.get("generators") or ()))
    return PageSection(
        "The flow of the data",
        points=(
            f"candidates are public texts, from {words.programs(writers)};",
            f"each hospital's program computes on its own machine {words.asked(questions, 'its')};",
            *(f"further: {printable(question)};" for question in words.further(questions, "its")),
            "it answers with whole numbers: bounded per record or person, with its share of the noise, under a mask;",
            f"a sum opens if {quorum.threshold} of {quorum.parties} hospitals or more take part;",
            "the opened sums decide what is written next, and how much of each program's texts is published.",
        ),
    )


def _sums_section(verdict: PrivacyVerdict) -> PageSection:
    plan = verdict.manifest.plan
    sum_rows = [
        ("sum", "statistic", "numbers", "bytes per answer", "noise", "one unit changes it by", "hospitals in it")
    ]
    for planned_sum in plan.sums:
        opened_sum = verdict.opened.get(planned_sum.name)
        sum_rows.append(
            (
                printable(planned_sum.name, 60),
                printable(planned_sum.statistic, 60),
                f"{planned_sum.dimension:,}",
                f"{math.ceil(planned_sum.dimension * planned_sum.modulus_bits / 8):,}",
                f"{planned_sum.sigma:.3g}",
                f"{planned_sum.l2:.3g}",
                "never opened" if opened_sum is None else f"{len(opened_sum.by.survivors)} of {len(verdict.spent)}",
            )
        )
    total_numbers = sum(planned_sum.dimension for planned_sum in plan.sums)
    return PageSection(
        "What left the hospitals",
        (
            f"{counted(len(verdict.opened), 'sum was', 'sums were')} opened of {len(plan.sums)} planned"
            f" ({total_numbers:,}"
            f" {noun(total_numbers, 'number')})."
            " What each message of a hospital was, with its hash, stands in that hospital's own dossier.",
            "The noise is stated by its standard deviation, in the unit in which one more or less changes the sum.",
        ),
        table=tuple(sum_rows),
    )


def _guarantee_section(verdict: PrivacyVerdict, unit: str) -> PageSection:
    plan = verdict.manifest.plan.privacy
    if math.isinf(verdict.alone):
        alone_words = "nothing that can be stated"
    else:
        alone_words = f"epsilon {verdict.alone:.6g}"
    nominal_words = f"{words.NOMINAL}: " if verdict.insecure else ""
    if verdict.guess_alone is not None and not verdict.insecure:
        alone_words += f": {impact.guess(verdict.guess_alone, f'one {unit}')}"
    promised_epsilon = math.inf if verdict.insecure else plan.epsilon
    guarantee_rows = [
        ("promised", f"{nominal_words}epsilon {plan.epsilon:.6g} at delta {number(plan.delta)}"),
        (
            "spent, recomputed from receipts",
            f"{nominal_words}epsilon {verdict.epsilon:.6g}, the hospital that spent most",
        ),
        (f"against everybody else together, {words.AS_IT_RAN}", f"{nominal_words}{alone_words}"),
        ("neighbours", f"differ in the presence of one {unit}"),
    ]
    if plan.unit == "user":
        guarantee_rows.append(("records of a patient", f"at most {plan.max_per_unit} count; their {plan.contribution}"))
    if verdict.without_receipt:
        guarantee_rows.append(("no final receipt", f"{', '.join(verdict.without_receipt)}: priced at the whole plan"))
    return PageSection(
        "The guarantee, and what it cost",
        impact.guarantee(promised_epsilon, plan.delta, unit),
        figures=tuple(guarantee_rows),
    )


def _parties_section(verdict: PrivacyVerdict) -> PageSection:
    party_rows = [("hospital", "fingerprint", "identity", "epsilon spent")]
    participation = verdict.participation
    for member, shown_name in zip(verdict.manifest.roster, participation.names, strict=True):
        unknown_words = "simulated" if verdict.simulated else "only its name is known"
        identity_words = unknown_words
        if member.name in verdict.stated_parties:
            identity_words = "confirmed, as you stated it"
        elif member.name in verdict.certified_parties:
            identity_words = "certified by the coordinator"
        spent_epsilon = verdict.spent[member.name]
        party_rows.append(
            (
                shown_name,
                party_fingerprint(member.name, member.identity),
                identity_words,
                f"{spent_epsilon:.4g}",
            )
        )
    return PageSection("Who took part", participation.sentences, table=tuple(party_rows))


def _files_section(folder: Path, published: Mapping[str, Any], verdict: PrivacyVerdict) -> PageSection:
    file_rows = [("file", "bytes", "SHA-256, as signed")]
    for file_name, digest in sorted(dict(published.get("files", {})).items()):
        is_here = file_name in OUTPUT_NAMES and (folder / file_name).is_file()
        if is_here:
            size_words = f"{(folder / file_name).stat().st_size:,}"
        else:
            size_words = "not here"
        file_rows.append((printable(str(file_name), 60), size_words, printable(str(digest), 64)))
    return PageSection(
        "What was published",
        (
            verdict.conclusion()[0],
            f"As the run wrote it. What an archive has beside it, or in the place of a file, {ARCHIVE_NAME} names.",
        ),
        table=tuple(file_rows),
    )


def _steps_section(folder: Path, verdict: PrivacyVerdict, fingerprint: str | None) -> PageSection:
    fingerprint_words = fingerprint or "THE COORDINATOR'S, AS A HOSPITAL HAS TOLD YOU"
    state_words = "fits together; nothing shows whose it is"
    if verdict.holds:
        state_words = "holds"
    elif verdict.papers_hold:
        state_words = "is not here: its papers hold, and no text was checked"
    elif verdict.faults:
        state_words = "does NOT hold"
    if verdict.simulated:
        fingerprint_request = ""
    else:
        fingerprint_request = " Have a hospital that took part tell you the coordinator's fingerprint."
    if verdict.simulated:
        fingerprint_option = ""
    else:
        fingerprint_option = f' --fingerprint "{fingerprint_words}"'
    return PageSection(
        "How to check it",
        (
            f"On any machine, without a network.{fingerprint_request}",
            f"When this page was made, the result was: the data set {state_words}.",
        ),
        columns=(f"undersong verify {shell_path(folder)}{fingerprint_option}",),
    )
