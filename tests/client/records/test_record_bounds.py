"""Memory and time of a dry run. The time is that of the processors, because other tests may run beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.party_home import set_up

pytestmark = pytest.mark.slow
MIB = 2**20
START_S = 3  # of the program with its imports
# The kernel's account of a child begins with the memory of the process that started it; the child's own does not.
PROGRAM = """
import sys
from undersong_client.cli.app import main
try:
    sys.exit(main())
finally:
    with open("/proc/self/status") as status, open("peak.txt", "w") as peak:
        peak.writelines(line.split()[1] for line in status if line.startswith("VmHWM:"))
"""


def dry_run(folder, file, *fields):
    """Exit code, counts, seconds of the processors and peak of memory in MiB of a dry run."""
    set_up(folder / "home", ("init", "alpha"))
    options = (*(fields or ("--user-field", "patient")), "--dry-run", "--json", "--home", str(folder / "home"))
    arguments = [sys.executable, "-c", PROGRAM, "data", "add", str(file), *options]
    with (folder / "said.json").open("wb") as said, (folder / "progress.txt").open("wb") as progress:
        child = subprocess.Popen(arguments, stdout=said, stderr=progress, cwd=folder)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    content = (folder / "said.json").read_text()
    counts = json.loads(content) if content else {}
    peak_kib = int((folder / "peak.txt").read_text())
    return child.returncode, counts, usage.ru_utime + usage.ru_stime, peak_kib / 1024


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_half_a_million_rows_take_a_minute_and_a_gigabyte(tmp_path, suffix):
    file, words = tmp_path / f"notes.{suffix}", "the patient was seen and is stable, further words follow"
    with file.open("w") as out:
        if suffix == "csv":
            out.write("patient,text\n")
            out.writelines(f'{n // 3},"note {n}: {words}"\n' for n in range(500_000))
        else:
            out.writelines(f'{{"patient": "p{n // 3}", "text": "note {n}: {words}"}}\n' for n in range(500_000))
    code, counts, seconds, memory = dry_run(tmp_path, file)
    assert (code, counts["records"], counts["users"]) == (0, 500_000, 166_667)
    assert seconds < 60
    assert memory < 1000
    assert "read " in (tmp_path / "progress.txt").read_text()


def test_note_of_ten_megabytes_is_skipped_naming_its_row(tmp_path):
    rows = "".join(f"{n},short\n" for n in range(40))
    (tmp_path / "notes.csv").write_text('patient,text\n1,"' + "word " * (2 * MIB) + '"\n' + rows)
    code, counts, seconds, memory = dry_run(tmp_path, tmp_path / "notes.csv")
    assert (code, counts["records"], counts["skipped"][0]["why"]) == (0, 40, "its text is longer than 4 MiB")
    assert seconds < 5
    assert memory < 500


def test_a_note_of_a_hundred_megabytes_stays_below_a_gigabyte(tmp_path):
    rows = "".join(json.dumps({"patient": n, "text": "short"}) + "\n" for n in range(40))
    (tmp_path / "notes.jsonl").write_text(json.dumps({"patient": 1, "text": "word " * (20 * MIB)}) + "\n" + rows)
    code, counts, _, memory = dry_run(tmp_path, tmp_path / "notes.jsonl")
    assert (code, counts["records"], counts["lost"]) == (0, 40, 1)
    assert memory < 1000


def test_attachment_shared_by_many_documents_is_decoded_once(tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "big.txt").write_text("a long note " * 700_000)
    attachment = {"attachment": {"contentType": "text/plain", "url": "big.txt"}}
    resource = {"resourceType": "DocumentReference", "status": "current", "subject": {"reference": "Patient/1"}}
    rows = [{**resource, "id": f"d{number}", "content": [attachment]} for number in range(150)]
    (folder / "DocumentReference.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, counts, seconds, memory = dry_run(tmp_path, folder)
    assert (code, counts["records"], counts["lost"]) == (2, 0, 150)
    assert seconds < 10
    assert memory < 500


def test_stray_formatted_cell_of_a_workbook_costs_at_most_two_seconds(tmp_path):
    case = Path(__file__).parent / "cases" / "xlsx_stray_last_cell.xlsx"
    code, counts, seconds, _ = dry_run(
        tmp_path, case, "--text-field", "Text", "--user-field", "Fall", "--user-is", "case"
    )
    assert (code, counts["records"]) == (0, 6)
    assert seconds < 2 + START_S


@pytest.mark.parametrize("content", [b"[" * 10, b'"a\n' * 3, b'a,"b\n' * 2, b'{"text": "x"}\n', b"\xff\x00"])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_any_ten_megabytes_are_read_within_a_minute_and_two_gigabytes(tmp_path, content, suffix):
    (tmp_path / f"notes.{suffix}").write_bytes(content * (10 * MIB // len(content)))
    code, _, seconds, memory = dry_run(tmp_path, tmp_path / f"notes.{suffix}")
    assert code in (0, 2)
    assert seconds < 60
    assert memory < 2000
