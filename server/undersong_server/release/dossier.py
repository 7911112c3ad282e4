"""A published data set as a privacy officer files it: what flowed, what it cost, what was checked, what is kept."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undersong_common.canonical import canonical_json
from undersong_common.printable import counted, noun, printable, shell_path
from undersong_common.printed_page import Page, Section
from undersong_common.privacy import impact
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_server.release.files import OUTPUT_NAMES, published_manifest
from undersong_server.release.verify import Verdict

KEPT = (
    ("what", "where", "how long"),
    ("texts, card, report, manifest with receipts", "the published folder", "for good: it is published"),
    (
        "opened sums, orders and answers of models",
        "the run's journal, at the coordinator",
        "until its operator removes the run; they are covered by the promise",
    ),
    ("masked answers of single parties", "nowhere", "dropped when their sum is opened; alone they are random"),
    ("who is enrolled", "the coordinator's registry", "until its operator removes the coordinator"),
    ("records, ledgers, keys of parties", "at each party, never here", "each party's own dossier says"),
)


def dossier(folder: Path, verdict: Verdict, *, fingerprint: str | None, audit: Mapping[str, Any] | None) -> Page:
    """Renders the dossier of a published folder, a page for a privacy officer.

    Args:
        verdict: what :func:`undersong_server.release.verify.verify` found there.
        fingerprint: the coordinator's fingerprint that the caller has stated to it.
        audit: what ``undersong audit --json`` wrote, if there is one.
    """
    published = published_manifest(folder)
    manifest = Manifest.from_bytes(canonical_json(published["manifest"]))
    unit = {"sample": "record", "user": "person", "party": "party"}[manifest.plan.privacy.unit]
    return Page(
        f"Dossier of the data set {printable(str(manifest.task['name']), 120)!r}, run {printable(manifest.run, 120)!r}",
        (
            *_faults(verdict),
            _purpose(manifest, verdict),
            _flow(manifest),
            _sums(manifest, verdict),
            _guarantee(manifest, verdict, unit),
            Section(
                "Assumptions",
                points=impact.assumptions(
                    manifest.plan.quorum.colluders, manifest.plan.quorum.parties, manifest.plan.privacy.unit
                ),
            ),
            impact.audit_section(audit),
            Section("What is kept, and erased", table=KEPT),
            _parties(manifest, verdict),
            _files(folder, published),
            _steps(folder, verdict, fingerprint),
            impact.for_the_assessment(unit, post_quantum=manifest.plan.quorum.post_quantum),
        ),
        note="Everything on it is recomputed from the published papers, as `undersong verify` does.",
        signature="Filed for:",
    )


def _faults(verdict: Verdict) -> list[Section]:
    if not verdict.faults:
        return []
    points = tuple(printable(fault, 600) for fault in verdict.faults)
    return [Section("NOT VERIFIED: the papers do not hold, and nothing below counts", points=points, loud=True)]


def _purpose(manifest: Manifest, verdict: Verdict) -> Section:
    task, unstated = manifest.task, "its operator has not stated it"
    unsigned = "a simulation: one program played every party" if verdict.simulated else "nobody has signed it"
    who = unsigned if verdict.signature is None else printable(verdict.signature.name, 63)
    if verdict.signature is not None:
        who += f", fingerprint {verdict.signature.fingerprint}"
    return Section(
        "What it is",
        figures=(
            ("purpose", printable(str(task.get("purpose") or unstated), 600)),
            ("published by", who),
            ("what one text is", printable(str(task.get("description") or unstated), 600)),
            ("labels", printable(", ".join(map(str, task.get("labels") or ())), 600) or "none"),
            ("who writes the texts", printable(", ".join(map(str, task.get("generators") or ())) or unstated, 600)),
            ("where it is published", printable(str(task.get("publication") or unstated), 600)),
            ("method", printable(manifest.method, 120)),
            ("plan, SHA-256", manifest.hash.hex()),
        ),
    )


def _flow(manifest: Manifest) -> Section:
    quorum = manifest.plan.quorum
    return Section(
        "The flow of the data",
        points=(
            "language models write candidate texts from public prompts;",
            "each party compares the candidates, or figures about them, with its records on its own machine;",
            "it answers with whole numbers: bounded per record or person, with its share of the noise, under a mask;",
            f"a sum opens if {quorum.threshold} of {quorum.parties} parties or more take part;",
            "the opened sums decide what is written next, and how much of each model's texts is published.",
        ),
    )


def _sums(manifest: Manifest, verdict: Verdict) -> Section:
    opened = {each.name: each for each in verdict.opened}
    rows = [("sum", "statistic", "numbers", "bytes per answer", "noise", "one unit changes it by", "parties in it")]
    for planned in manifest.plan.sums:
        found = opened.get(planned.name)
        rows.append(
            (
                printable(planned.name, 60),
                printable(planned.statistic, 60),
                f"{planned.dimension:,}",
                f"{math.ceil(planned.dimension * planned.modulus_bits / 8):,}",
                f"{planned.sigma:.3g}",
                f"{planned.l2:.3g}",
                "never opened" if found is None else f"{len(found.survivors)} of {len(verdict.parties)}",
            )
        )
    numbers = sum(planned.dimension for planned in manifest.plan.sums)
    return Section(
        "What left the parties",
        (
            f"{counted(len(opened), 'sum was', 'sums were')} opened of {len(manifest.plan.sums)} planned ({numbers:,}"
            f" {noun(numbers, 'number')})."
            " What each message of a party was, with its hash, stands in that party's own dossier.",
            "Noise and change are in the same unit: a deviation, and a length.",
        ),
        table=tuple(rows),
    )


def _guarantee(manifest: Manifest, verdict: Verdict, unit: str) -> Section:
    plan = manifest.plan.privacy
    alone = "nothing that can be stated" if math.isinf(verdict.alone) else f"epsilon {verdict.alone:.6g}"
    promised = math.inf if verdict.insecure else verdict.promised
    figures = [
        ("promised", f"epsilon {verdict.promised:.6g} at delta {plan.delta:g}"),
        ("spent, recomputed from receipts", f"epsilon {verdict.epsilon:.6g}, the party that spent most"),
        ("against everybody else together", alone),
        ("neighbours", f"differ in the presence of one {unit}"),
    ]
    if plan.unit == "user":
        figures.append(("records of a person", f"at most {plan.max_per_unit} count; their {plan.contribution}"))
    if verdict.without_receipt:
        figures.append(("no final receipt", f"{', '.join(verdict.without_receipt)}: priced at the whole plan"))
    return Section(
        "The guarantee, and what it cost", impact.guarantee(promised, plan.delta, unit), figures=tuple(figures)
    )


def _parties(manifest: Manifest, verdict: Verdict) -> Section:
    rows = [("party", "fingerprint", "identity", "epsilon spent")]
    for member in manifest.roster:
        unknown = "simulated" if verdict.simulated else "only its name is known"
        known = "confirmed" if member.name in verdict.known else unknown
        spent = verdict.spent[member.name]
        rows.append((member.name, party_fingerprint(member.name, member.identity), known, f"{spent:.4g}"))
    return Section("Who took part", table=tuple(rows))


def _files(folder: Path, published: Mapping[str, Any]) -> Section:
    rows = [("file", "bytes", "SHA-256, as signed")]
    for name, digest in sorted(dict(published.get("files", {})).items()):
        here = name in OUTPUT_NAMES and (folder / name).is_file()
        size = f"{(folder / name).stat().st_size:,}" if here else "not here"
        rows.append((printable(str(name), 60), size, printable(str(digest), 64)))
    return Section("What was published", table=tuple(rows))


def _steps(folder: Path, verdict: Verdict, fingerprint: str | None) -> Section:
    stated = fingerprint or "THE COORDINATOR'S, AS A HOSPITAL HAS TOLD YOU"
    state = (
        "holds" if verdict.holds else "does NOT hold" if verdict.faults else "fits together; nothing shows whose it is"
    )
    asked = "" if verdict.simulated else " Have a hospital that took part tell you the coordinator's fingerprint."
    option = "" if verdict.simulated else f' --fingerprint "{stated}"'
    return Section(
        "How to check it",
        (f"On any machine, without a network.{asked}", f"When this page was made the data set {state}."),
        columns=(f"undersong verify {shell_path(folder)}{option}",),
    )
