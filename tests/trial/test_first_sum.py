"""docs/hospital.md, typed as it stands: three empty machines, three sources, four commands each, one opened sum."""

import base64
import json
import os
import pty
import re
import shlex
import sqlite3
import subprocess
import sys

import pytest

from tests.doubles.hospitals import operator
from tests.doubles.loops import wait_for
from tests.doubles.processes import HOSPITAL, ROOT, WEIGHTLESS, CoordinatorProcess, Process, environment, free_port
from tests.trial.stranger import started

PAGE = (ROOT / "docs" / "hospital.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Four commands to the first sum")[2].partition("\n## ")[0]
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
BLOCKS = [text for kind, text in FENCED if not kind and "pip install" in text]
QUERY = dict(FENCED)["sql"]
NOTES = [(f"note {number} of a patient", "discharge" if number % 3 else "other", number // 2) for number in range(40)]
TASK = """\
[task]
name = "letters"
description = "a letter"
labels = ["discharge", "other"]
[privacy]
epsilon = 3.0
delta = 1e-7
unit = "user"
max_per_user = 4
[federation]
parties = 3
tolerated_dropouts = 0
colluders = 0
[method]
name = "undersong"
samples = 12
rounds = 2
[[generators]]
name = "corpus"
kind = "ngram"
corpus = "corpus.jsonl"
"""


def fhir(folder):
    (folder / "export").mkdir()
    rows = []
    for number, (text, label, patient) in enumerate(NOTES):
        code = "18842-5" if label == "discharge" else "34109-9"
        data = base64.b64encode(text.encode()).decode()
        row = {"resourceType": "DocumentReference", "id": str(number), "status": "current"}
        row["subject"] = {"reference": f"Patient/{patient}"}
        row["type"] = {"coding": [{"system": "http://loinc.org", "code": code}]}
        row["content"] = [{"attachment": {"contentType": "text/plain", "data": data}}]
        rows.append(json.dumps(row) + "\n")
    (folder / "export" / "DocumentReference.ndjson").write_text("".join(rows))


def omop(folder):
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect(folder / "omop.sqlite") as database:
        database.execute("CREATE TABLE note (note_id, person_id, note_text, note_class_concept_id)")
        database.execute("CREATE TABLE concept (concept_id, concept_name)")
        database.executemany("INSERT INTO concept VALUES (?, ?)", [(1, "Discharge summary"), (2, "Consult note")])
        rows = [(n, who, text, 1 if label == "discharge" else 2) for n, (text, label, who) in enumerate(NOTES)]
        database.executemany("INSERT INTO note VALUES (?, ?, ?, ?)", rows)
    (folder / "notes.sql").write_text(QUERY)
    (folder / "url.txt").touch(mode=0o600)
    (folder / "url.txt").write_text("sqlite:///omop.sqlite\n")


def excel(folder):
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.append(["Text", "Klasse", "Patientennummer"])
    for text, label, patient in NOTES:
        book.active.append([text, "Arztbrief" if label == "discharge" else "Befund", patient])
    book.save(folder / "notes.xlsx")


WORDS = re.compile(r"over the telephone:?\n+ *((?:[a-z]+ +){8}[a-z]+)")
SOURCES = {"fhir": fhir, "omop": omop, "excel": excel}


def test_documentation_has_four_commands_for_each_source_and_shipped_query():
    assert [len(block.splitlines()) for block in BLOCKS] == [4, 4, 4]
    shipped = (ROOT / "examples" / "omop" / "notes.sql").read_text(encoding="utf-8").splitlines()
    assert QUERY.splitlines() == [line for line in shipped if not line.startswith("--")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_commands_lead_from_nothing_to_an_opened_sum(tmp_path):
    home, port = tmp_path / "coordinator", free_port()
    operator(
        *("coordinator", "init", "--home", home, "--metrics", ""),
        *("--operator", "Example Hospital", "--contact", "01 234 56"),
        *("--address", f"localhost:{port}", "--bind", f"127.0.0.1:{port}"),
    )
    fingerprint = json.loads(operator("coordinator", "show", "--home", home, "--json"))["fingerprint"]
    (tmp_path / "task.toml").write_text(TASK)
    texts = [json.dumps({"text": text, "label": label}) + "\n" for text, label, _ in NOTES]
    (tmp_path / "corpus.jsonl").write_text("".join(texts))
    daemons = []
    try:
        with CoordinatorProcess(home, port, weights=False):
            hospitals = {}
            for (name, make), block in zip(SOURCES.items(), BLOCKS, strict=True):
                folder = tmp_path / name
                folder.mkdir()
                make(folder)
                hospitals[name] = Machine(folder, block, name, fingerprint)
                operator("invite", name, "--home", home, "--out", folder / f"{name}.package")
                hospitals[name].type("join")
                assert "discharge 26, other 14" in hospitals[name].said
                stated = re.search(r"fingerprint: ([0-9a-f-]+)", hospitals[name].said)[1]
                request, grant = folder / f"{name}.request.json", folder / f"{name}.grant"
                operator("sign", request, "--home", home, "--fingerprint", stated, "--out", grant)
                daemons.append(hospitals[name].daemon())
                daemons[-1].start()
            operator("run", "plan", tmp_path / "task.toml", "--home", home, "--name", "first")
            operator("run", "start", "first", "--home", home)
            for each, daemon in zip(hospitals.values(), daemons, strict=True):
                wait_for(lambda: "waits for a decision" in daemon.text(), 300.0, said=daemon.text, every_s=0.2)  # noqa: B023
                run = re.search(r"run '(\w+)' waits for a decision", daemon.text())[1]
                each.answer("approve", WORDS, RUN=[run])
            status = home / "runs" / "first" / "status.json"
            ended = ("finished", "failed")
            wait_for(lambda: json.loads(status.read_text())["state"] in ended, 300.0, said=daemons[0].text, every_s=0.2)
            assert json.loads(status.read_text())["state"] == "finished", status.read_text()
    finally:
        for daemon in daemons:
            daemon.end()


class Machine:
    """A person at an empty machine, with the page's block of commands."""

    def __init__(self, folder, block, name, fingerprint):
        self._folder = folder
        self._lines = [line.replace("NAME", name).replace("1a2b-...", fingerprint) for line in block.splitlines()]
        self._env = {"HOME": str(folder), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", "UNDERSONG_PARTY_HOME": ""}
        self.said = ""

    def words(self, command):
        found = [line for line in self._lines if line.startswith(f"undersong-party {command} ")]
        return shlex.split(found[0] if found else f"undersong-party {command}")[1:]

    def type(self, command):
        words = self.words(command)
        path = f"{WEIGHTLESS}:{environment()['PYTHONPATH']}"
        done = started("undersong-party", words, self._folder, {**self._env, "PYTHONPATH": path})
        assert done.code == 0, (words, done)
        self.said = done.out

    def answer(self, command, wanted, **meant):
        """Types the command at a terminal, reads what it shows, and answers it with what ``wanted`` finds there."""
        words = [each for word in self.words(command) for each in meant.get(word, [word])]
        keyboard, terminal = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", HOSPITAL, *words],
            cwd=self._folder,
            env={**environment(**self._env), "PYTHONPATH": f"{WEIGHTLESS}:{environment()['PYTHONPATH']}"},
            stdin=terminal,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(terminal)
            shown = ""
            for line in process.stdout:
                shown += line
                if found := wanted.search(shown):
                    os.write(keyboard, f"{found[1]}\n".encode())
                    break
            self.said = shown + process.stdout.read()
        os.close(keyboard)
        assert process.returncode == 0, (words, self.said)

    def daemon(self):
        grant = [str(self._folder / word) if word.endswith(".grant") else word for word in self.words("run")]
        return Process(HOSPITAL, grant, self._folder / "daemon.log", self._env, weights=False)
