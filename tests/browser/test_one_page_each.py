"""Empty folders, one page for each person, at most four commands a side, and the browser: the first opened sum."""

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import threading
import time

import pytest

from tests.doubles.loops import wait_for
from tests.doubles.one_page import steps_of
from tests.doubles.processes import OPERATOR, ROOT, WEIGHTLESS, environment, free_port
from tests.trial.test_first_sum import BLOCKS, NOTES, SOURCES, WORDS, Machine

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "one-page-operator.md").read_text(encoding="utf-8")
COMMANDS = [
    command
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    for command in line.split(" && ")
]
SERVE = next(command for command in COMMANDS if "serve" in command)
MOST_COMMANDS = 4
MOST_SECONDS = 600


class OperatorTerminal:
    """The operator's terminal, in which the page's line is typed and its question answered; ends with the context.

    Args:
        line: the command, as the page has it; ``options`` keep it on free ports of this machine.
    """

    def __init__(self, folder, line, answer, options):
        self.text = ""
        self._answer = answer
        keyboard, terminal = pty.openpty()
        variables = {"HOME": str(folder), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", "UNDERSONG_HOME": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", OPERATOR, *shlex.split(line)[1:], *options],
            cwd=folder,
            env={**environment(**variables), "PYTHONPATH": f"{WEIGHTLESS}:{environment()['PYTHONPATH']}"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        self._keyboard = keyboard
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self):
        with contextlib.suppress(OSError):  # Linux ends a terminal whose program has ended by an error.
            while data := os.read(self._keyboard, 4096):
                self.text += data.decode(errors="replace")
                if self._answer and "hospitals reach this machine" in self.text:
                    os.write(self._keyboard, f"{self._answer}\n".encode())
                    self._answer = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(30)
        self._reading.join(5)
        os.close(self._keyboard)


def follow_next_step(operator, words):
    """Follows the step with which the screen ends, and which the operator's page lists with these words."""
    assert words in steps_of("operator")
    operator.page.locator("[data-part=next_step]").get_by_role("link", name=words).click()


def invite(operator, name, folder):
    """Invites a hospital on the screen that is shown; its package comes to its folder."""
    operator.page.get_by_label("Name of the hospital").fill(name)
    operator.page.get_by_label("Telephone contact there").fill(f"Dr. {name}, 555-01")
    operator.page.get_by_role("button", name="Invite").click()
    operator.fetch(operator.page.get_by_role("link", name="Download the package").click, folder)
    operator.page.get_by_text("was downloaded").wait_for()


def sign(operator, machine, name, folder):
    """Signs the request that a hospital's `join` has written; the reply comes to its folder."""
    operator.page.get_by_role("link", name="Hospitals", exact=True).click()
    operator.page.get_by_role("link", name="Sign a request").click()
    spoken = re.search(r"fingerprint: ([0-9a-f-]+)", machine.said)[1]
    operator.page.get_by_label("Request file").set_input_files(folder / f"{name}.request.json")
    operator.page.get_by_label("Its fingerprint, as the hospital states it").fill(spoken)
    operator.page.get_by_role("button", name="Compare and sign").click()
    operator.fetch(operator.page.get_by_role("link", name="Download the reply").click, folder)
    operator.page.get_by_text("was downloaded").wait_for()


def plan_by_clicks(operator, texts):
    """Fills the form of a new run, from the template of texts with labels."""
    page = operator.page
    page.get_by_role("button", name="Begin").click()
    values = {
        "Name": "letters",
        "Purpose": "to train letter sorters",
        "Description": "a letter",
        "Label 1": "discharge",
        "Label 2": "other",
        "Where": "at home",
        "Licence": "CC0-1.0",
    }
    for label, value in values.items():
        page.get_by_label(re.compile(rf"^{label}( \(required\))?$")).first.fill(value)
    page.get_by_label("Kind of generator").select_option("ngram")
    page.get_by_role("button", name="Add a generator").click()
    box = page.locator("fieldset").filter(has_text="(ngram)")
    box.get_by_label(re.compile("^Name")).fill("corpus")
    box.locator("input[type=file]").set_input_files(texts)
    page.locator("#key-generators-0-corpus:not([value=''])").wait_for()
    page.get_by_label("Samples").fill("12")
    page.get_by_label("Name of the run").fill("first")
    page.get_by_role("button", name="Plan this run").click()


def test_documented_four_commands_on_each_side_lead_to_an_opened_sum(window, tmp_path):
    assert len(COMMANDS) <= MOST_COMMANDS
    assert all(len(block.splitlines()) <= MOST_COMMANDS for block in BLOCKS)
    texts = tmp_path / "corpus.jsonl"
    texts.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label, _ in NOTES))
    port, page_port, began = free_port(), free_port(), time.monotonic()
    office = tmp_path / "office"
    office.mkdir()
    options = ("--bind", f"127.0.0.1:{port}", "--metrics", "", "--console-port", str(page_port))
    with contextlib.ExitStack() as stack:
        terminal = stack.enter_context(OperatorTerminal(office, SERVE, f"localhost:{port}", options))
        wait_for(lambda: "/enter#" in terminal.text, 90.0, said=lambda: terminal.text, every_s=0.1)
        link = re.search(r"http://\S+/enter#\S+", terminal.text)[0]
        fingerprint = re.search(r"fingerprint: ([0-9a-f-]+)", terminal.text)[1]
        operator = window(link.partition("/enter")[0]).enter(link)
        follow_next_step(operator, "Say who asks: legal name and contact")
        operator.page.get_by_label("Legal name of who asks").fill("Example Hospital")
        operator.page.get_by_label("A person there, with a telephone number").fill("Mara Holm, 0123 456")
        operator.page.get_by_role("button", name="Save who asks").click()
        follow_next_step(operator, "Invite each hospital")
        machines, daemons = {}, []
        for (name, make_notes), block in zip(SOURCES.items(), BLOCKS, strict=True):
            folder = tmp_path / name
            folder.mkdir()
            make_notes(folder)
            invite(operator, name, folder)
            machines[name] = Machine(folder, block, name, fingerprint)
            machines[name].type("join")
        for name, machine in machines.items():
            sign(operator, machine, name, tmp_path / name)
            daemons.append(machine.daemon())
            stack.callback(daemons[-1].end)
            daemons[-1].start()
        operator.page.get_by_role("link", name="Home", exact=True).click()
        follow_next_step(operator, "Plan a run")
        plan_by_clicks(operator, texts)
        operator.page.get_by_text("Planned: no hospital is asked until you start it.").wait_for()
        operator.page.get_by_role("button", name="Start").click()
        for machine, daemon in zip(machines.values(), daemons, strict=True):
            wait_for(lambda: "waits for a decision" in daemon.text(), 120.0, said=daemon.text, every_s=0.2)  # noqa: B023
            machine.answer("approve", WORDS, RUN=["first"])
        status = office / "coordinator" / "runs" / "first" / "status.json"
        wait_for(lambda: '"finished"' in status.read_text(), 120.0, said=status.read_text, every_s=0.2)
        assert time.monotonic() - began < MOST_SECONDS
