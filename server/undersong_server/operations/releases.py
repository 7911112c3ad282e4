"""What a finished run left: hand it out, and check what was handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_common.errors import ConfigurationError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.release.files import MANIFEST_NAME, copy_outputs, published_manifest
from undersong_server.release.verify import Verdict, verify

if TYPE_CHECKING:
    from undersong_common.printed_page import Page

__all__ = ["Exported", "Verdict", "dossier", "export", "verify"]


@dataclass(frozen=True)
class Exported:
    """The files that were written into a folder of the operator's."""

    run: str
    folder: Path
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "folder": str(self.folder), "files": list(self.files)}


def export(home: Path, run: str, folder: Path) -> Exported:
    """Copies a finished run's corpus, card, report, manifest with receipts and ledgers into ``folder``.

    Raises ConfigurationError for a run that is unknown or has not finished, and where the folder cannot be written or
    holds another run.
    """
    found = CoordinatorHome(home).finished(run, "export it when it has finished")
    _check_target(folder, found.output)
    return Exported(run, folder, tuple(copy_outputs(found.output, folder)))


def dossier(
    home: Path, run: str, *, fingerprint: str | None, parties: Mapping[str, str], audit: Path | None
) -> tuple[Page, Verdict]:
    """A run as a privacy officer files it, and the verdict that it states.

    Args:
        home: the coordinator's folder, for a run by its name.
        run: a published folder, or the name of a finished run at this coordinator; of such a one the coordinator's own
            fingerprint is stated where the caller states none.
        fingerprint, parties: as of :func:`verify`.
        audit: a file that ``undersong audit --json`` wrote.

    Raises ConfigurationError for a run that is neither, PrivacyRefusal where its manifest cannot be read.
    """
    from undersong_common.privacy import impact
    from undersong_server.release import dossier as pages

    folder = Path(run)
    if not (folder / MANIFEST_NAME).exists():
        coordinator = CoordinatorHome(home)
        folder = coordinator.finished(run, "write its dossier when it has finished").output
        fingerprint = fingerprint or coordinator.authority().fingerprint
    found = None if audit is None else impact.read_audit(audit)
    verdict = verify(folder, fingerprint=fingerprint, parties=parties)
    return pages.dossier(folder, verdict, fingerprint=fingerprint, audit=found), verdict


def _check_target(folder: Path, output: Path) -> None:
    """A folder that holds another run is not written over: its papers and this run's texts would not fit together."""
    if not (folder / MANIFEST_NAME).exists():
        return
    try:
        there = published_manifest(folder).get("manifest_hash")
    except ConfigurationError:
        there = None
    if there != published_manifest(output).get("manifest_hash"):
        raise ConfigurationError(f"{folder}: holds another run", "name another folder with --out")
