"""What a finished run writes for everyone: corpus, dataset card, manifest with receipts, ledgers and report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server.conduct import Outcome
from server.outputs import (
    CARD_NAME,
    LEDGER_NAME,
    MANIFEST_NAME,
    REPORT_NAME,
    SEQUENCES_NAME,
    corpus_files,
    write_files,
)
from server.report import ReportData, render_card, render_html


def publish(
    folder: Path,
    outcome: Outcome,
    report: ReportData,
    ledgers: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Writes every output file of a run into ``folder``, all or none.

    Args:
        ledgers: entries of each party's ledger that concern this run, by party name.
    """
    write_files(
        folder,
        {
            **corpus_files(outcome.samples),
            **_sequences(outcome),
            MANIFEST_NAME: json.dumps(_manifest(outcome, report), indent=2, ensure_ascii=False) + "\n",
            LEDGER_NAME: _ledger_lines(ledgers),
            CARD_NAME: render_card(report),
            REPORT_NAME: render_html(report),
        },
    )


def _manifest(outcome: Outcome, report: ReportData) -> dict[str, Any]:
    """Everything that ``undersong verify`` needs, and nothing that describes a party's data."""
    return {
        "private": report.private,
        "manifest": json.loads(outcome.manifest.to_bytes()),
        "manifest_hash": outcome.manifest.hash.hex(),
        "signatures": {party: signature.hex() for party, signature in outcome.signatures.items()},
        "sums": outcome.sums,
        "receipts": {
            party: {"body": receipt.body.decode("utf-8"), "signature": receipt.signature.hex()}
            for party, receipt in sorted(outcome.receipts.items())
        },
    }


def _sequences(outcome: Outcome) -> dict[str, bytes | str]:
    """The keyphrase sequences that a method recorded, one a line with its label; no file where there are none."""
    rows = [row for _, recorded in outcome.records.get("sequences", ()) for row in recorded]
    if not rows:
        return {}
    lines = (json.dumps({"label": label, "terms": list(terms)}, ensure_ascii=False) for label, terms in rows)
    return {SEQUENCES_NAME: "".join(f"{line}\n" for line in lines)}


def _ledger_lines(ledgers: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = [
        json.dumps({"party": party, **entry}, ensure_ascii=False, sort_keys=True)
        for party, entries in sorted(ledgers.items())
        for entry in entries
    ]
    return "".join(f"{line}\n" for line in lines)
