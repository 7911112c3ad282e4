"""A bundle for whoever helps: how everything stands, with no text, no key and no address of a person in it."""

from __future__ import annotations

import io
import platform
import zipfile
from pathlib import Path

from undersong_common.printable import json_text, with_iso_times
from undersong_common.version import SOFTWARE
from undersong_server.operations import coordinator, enrolment
from undersong_server.operations.overview import RunIndex
from undersong_server.operations.watching import log

LOGS = 50  # runs whose log is in it, the newest


def bundle(home: Path) -> bytes:
    """A ZIP file. Texts, journals, task files and key files are left out; parties are there by name and fingerprint."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, value: object) -> None:
            archive.writestr(name, json_text(with_iso_times(value)))

        add("program.json", {"software": SOFTWARE, "python": platform.python_version(), "system": platform.platform()})
        facts = coordinator.show(home).to_json()
        add("coordinator.json", {key: value for key, value in facts.items() if key != "home"})
        parties = [each.to_json() for each in enrolment.parties(home)]
        add("parties.json", [{key: item for key, item in each.items() if key != "contact"} for each in parties])
        listed = RunIndex(home).runs()
        add("runs.json", [each.to_json() for each in listed])
        newest = sorted(listed, key=lambda run: -(run.status.at or 0.0))[:LOGS]
        for number, run in enumerate(run for run in newest if run.parties):
            archive.writestr(f"logs/{number:03}.txt", "\n".join([run.run, *log(home, run.run)]) + "\n")
    return file.getvalue()
