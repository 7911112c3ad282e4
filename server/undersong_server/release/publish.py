"""Writes a finished run's public files: corpus, dataset card, manifest with receipts, and report."""

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from undersong_common.embedding import TextLengths
from undersong_common.version import VERSION
from undersong_server.release.files import (
    ADAPTERS_NAME,
    CARD_NAME,
    MANIFEST_NAME,
    REPORT_NAME,
    SEQUENCES_NAME,
    Signer,
    SimulationSigner,
    corpus_files,
    write_files,
)
from undersong_server.report.data import Accuracy, GeneratorUse, Measure, PrivacyStatement, ReportData
from undersong_server.report.html import render_card, render_html
from undersong_server.runs.execution import Outcome
from undersong_server.runs.planning import RunPlan


def report_data(
    run_plan: RunPlan,
    outcome: Outcome,
    lengths: Callable[[Sequence[str]], TextLengths],
    *,
    created: str,
    insecure_noise: bool = False,
    accuracy: Sequence[Accuracy] = (),
    measures: Sequence[Measure] = (),
    seeds: int = 1,
    test_set: str = "",
    seconds: bool = True,
) -> ReportData:
    """Collects the values of a finished run that its report, card and final screen show.

    Args:
        lengths: counts the texts that the embedder does not read at once.
        measures: figures of the corpus beside the public test file; ``seeds``: number of seeds of its task models.
        created: date in words; "" with ``seconds`` False if two runs' outputs must be equal byte for byte.
    """
    task = run_plan.task
    texts = [sample.text for sample in outcome.samples]
    weights = tuple(tuple(row) for _, row in outcome.records.get("weights", ()))
    return ReportData(
        run=outcome.manifest.run,
        task=task.task.name,
        description=task.task.description,
        publication=task.publication,
        method=task.method.name,
        labels=task.task.labels,
        generators=run_plan.setting.generators,
        weights=weights,
        samples=outcome.samples,
        privacy=_statement(run_plan, insecure_noise),
        settings=tuple((key, str(value)) for key, value in task.options.model_dump().items()),
        seconds=tuple(outcome.seconds.items()) if seconds else (),
        usage=tuple(GeneratorUse(each.name, each.kind, outcome.usage[each.name]) for each in task.generators),
        accuracy=tuple(accuracy),
        measures=tuple(measures),
        seeds=seeds,
        test_set=test_set,
        created=created,
        version=VERSION,
        plan_hash=outcome.manifest.hash.hex(),
        embedder=outcome.manifest.embedder,
        remarks=(
            *(str(remark) for _, remark in outcome.records.get("remarks", ())),
            *filter(None, [lengths(texts).words]),
        ),
    )


def publish(
    folder: Path,
    outcome: Outcome,
    report: ReportData,
    *,
    signer: Signer | SimulationSigner | None = None,
) -> None:
    """Writes every output file of a run into ``folder``, all or none.

    Of a party's ledger the manifest holds only what the party's receipt states. The ledger's first entry and its other
    runs describe the party's data set and stay unpublished, in a simulation too.

    Args:
        signer: the coordinator, or the simulation, that signs it.
    """
    if signer is not None:
        report = replace(report, publisher=signer.publisher)
    hashed = {
        **corpus_files(outcome.samples),
        **_sequences(outcome),
        **_adapters(outcome),
        CARD_NAME: render_card(report),
        REPORT_NAME: render_html(report),
    }
    manifest = {**_manifest(outcome, report), "files": {name: _sha256(content) for name, content in hashed.items()}}
    if signer is not None:
        manifest = signer.sign(manifest)
    write_files(
        folder,
        {
            **hashed,
            MANIFEST_NAME: json.dumps(manifest, indent=2, ensure_ascii=False) + "\n",
        },
    )


def _manifest(outcome: Outcome, report: ReportData) -> dict[str, Any]:
    """Returns what ``undersong verify`` needs, and nothing that describes a party's data."""
    return {
        "private": report.privacy.is_private,
        "manifest": json.loads(outcome.manifest.to_bytes()),
        "manifest_hash": outcome.manifest.hash.hex(),
        "signatures": {party: signature.hex() for party, signature in sorted(outcome.signatures.items())},
        "sums": dict(outcome.sums),
        "receipts": {
            party: {"body": receipt.body.decode("utf-8"), "signature": receipt.signature.hex()}
            for party, receipt in sorted(outcome.receipts.items())
        },
    }


def _sha256(content: bytes | str) -> str:
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content  # as write_files writes it
    return hashlib.sha256(data).hexdigest()


def _statement(run_plan: RunPlan, insecure_noise: bool) -> PrivacyStatement:
    plan = run_plan.plan
    private = math.isfinite(plan.privacy.epsilon)
    return PrivacyStatement(
        plan.privacy,
        plan.quorum,
        tuple(plan.epsilon_after(count) for count in range(1, len(plan.sums) + 1)),
        plan.epsilon_if_all_others_collude() if private and plan.sums else None,
        insecure_noise,
    )


def _sequences(outcome: Outcome) -> dict[str, bytes | str]:
    """The keyphrase sequences that a method recorded, one per line with its label; no file if there are none."""
    rows = [row for _, recorded in outcome.records.get("sequences", ()) for row in recorded]
    if not rows:
        return {}
    lines = (json.dumps({"label": label, "terms": list(terms)}, ensure_ascii=False) for label, terms in rows)
    return {SEQUENCES_NAME: "".join(f"{line}\n" for line in lines)}


def _adapters(outcome: Outcome) -> dict[str, bytes | str]:
    """A folder of each tuned generator's adapter, as peft reads it, in one file; equal adapters give equal bytes."""
    if not outcome.adapters:
        return {}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, files in sorted(outcome.adapters.items()):
            for file, content in sorted(files.items()):
                archive.writestr(zipfile.ZipInfo(f"{name}/{file}"), content)
    return {ADAPTERS_NAME: packed.getvalue()}
