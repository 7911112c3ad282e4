"""The units under a real systemd, in a container over this machine's own files, of which nothing is kept."""

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.doubles.loops import wait_for
from tests.doubles.processes import HOSPITAL, OPERATOR, ROOT, SOURCES, WEIGHTLESS
from undersong_common.program.services import UNITS

PYTHON = "/usr/bin/python3"  # the units hide /home and /root, where another one may lie
HIDDEN = ("home", "root", "tmp", "run")  # folders of the machine that the units do not see
SITE = sysconfig.get_paths()["purelib"]
TMPFS = [f"--tmpfs={folder}:notmpcopyup" for folder in ("/tmp", "/run", "/run/lock")]
COORDINATOR, PARTY = "/var/lib/undersong/coordinator", "/var/lib/undersong-party/home"
LIMIT = 4096  # open files, and processes, of the container
SERVICES = ("undersong-coordinator", "undersong-console", "undersong-party", "undersong-page")
ACCOUNTS = ("undersong", "undersong-party")
TRY_AGAIN, TO_BE_CORRECTED = 75, 2  # exit codes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def limits():
    """Options that lower the numbers of open files and processes: podman asks for more than a container may have."""
    for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        _, most = resource.getrlimit(kind)
        number = LIMIT if most == resource.RLIM_INFINITY else min(LIMIT, most)
        yield f"--ulimit={name}={number}:{number}"


class Machine:
    """A container in which systemd is the first process. Skips where none can be started."""

    def __init__(self):
        if shutil.which("podman") is None or not os.access("/lib/systemd/systemd", os.X_OK) or os.geteuid():
            pytest.skip("podman (Debian: podman, runc), systemd and root are needed")
        if any(Path(path).parts[1] in HIDDEN for path in (ROOT, SITE)):
            pytest.skip("the units hide the folder of this checkout, or of its packages")
        version = subprocess.run([PYTHON, "--version"], capture_output=True, text=True).stdout
        if version.split()[-1:] == [] or version.split()[1].split(".")[:2] != [str(n) for n in sys.version_info[:2]]:
            pytest.skip(f"{PYTHON} is of another version than this one")
        self.name = f"undersong-units-{os.getpid()}"
        options = ["--systemd=always", "--network=none", "--cap-add=SYS_ADMIN", *TMPFS, *limits()]
        command = ["podman", "run", "-d", "--name", self.name, *options, "--rootfs", "/:O", "/lib/systemd/systemd"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.close()
            pytest.skip(f"podman starts no container with systemd here: {done.stderr.strip()[-300:]}")
        end = time.monotonic() + 120
        while self("systemctl is-system-running", check=False).strip() not in ("running", "degraded"):
            if time.monotonic() > end:
                self.close()
                pytest.skip("systemd does not come up in a container here")
            time.sleep(1)

    def __call__(self, line, *, check=True, given=""):
        """Output of a line of shell in the machine."""
        command = ["podman", "exec", "-i", self.name, "sh", "-c", line]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def copy(self, path, target):
        """Copies a file of this machine's into it: both have a folder of temporary files of their own."""
        with open(path, "rb") as content:
            command = ["podman", "exec", "-i", self.name, "sh", "-c", f"cat > {shlex.quote(target)}"]
            subprocess.run(command, stdin=content, check=True, timeout=300)

    def close(self):
        subprocess.run(["podman", "rm", "-f", "-t", "2", self.name], capture_output=True)


@pytest.fixture(scope="module")
def machine():
    """The machine with the units installed and their accounts."""
    found = Machine()
    try:
        found(f"cp {shlex.quote(str(UNITS))}/* /etc/systemd/system/ && systemctl daemon-reload")
        for account in ACCOUNTS:
            add_account(found, account)
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("name", SERVICES)
def test_systemd_restarts_a_unit_after_exit_code_75_and_not_after_2(machine, name):
    folder = f"/run/systemd/system/{name}.service.d"

    def end_with(code):
        """Starts the unit with all its settings but the program, which ends with ``code``."""
        lines = f"[Service]\nExecStart=\nExecStart=/bin/sh -c 'exit {code}'\nRestartSec=200ms\n"
        machine(f"mkdir -p {folder} && cat > {folder}/ends.conf && systemctl daemon-reload", given=lines)
        machine(f"systemctl reset-failed {name}; systemctl start {name}", check=False)

    def shown(key):
        return machine(f"systemctl show -P {key} {name}").strip()

    try:
        end_with(TRY_AGAIN)
        wait_for(lambda: int(shown("NRestarts")) >= 2, 60.0, said=lambda: shown("Result"), every_s=0.2)
        machine(f"systemctl stop {name}")
        end_with(TO_BE_CORRECTED)
        wait_for(lambda: shown("ActiveState") == "failed", 60.0, said=lambda: shown("ActiveState"), every_s=0.2)
        time.sleep(2.0)  # ten times the pause before a restart
        assert (shown("ActiveState"), shown("NRestarts"), shown("ExecMainStatus")) == ("failed", "0", "2")
    finally:
        machine(f"rm -r {folder}; systemctl daemon-reload; systemctl reset-failed {name}", check=False)


def run_checkout(machine, program, module):
    """Lets /opt/undersong/bin/PROGRAM run this checkout."""
    path = ":".join(map(str, (WEIGHTLESS, *SOURCES, SITE)))
    script = f'#!/bin/sh\nexport PYTHONPATH={path}\nexec {PYTHON} -m {module} "$@"\n'
    machine(
        f"mkdir -p /opt/undersong/bin && cat > /opt/undersong/bin/{program}; chmod +x /opt/undersong/bin/{program}",
        given=script,
    )


def add_account(machine, account):
    home = f"--home-dir /var/lib/{account} --create-home"
    machine(f"useradd --system {home} --shell /usr/sbin/nologin {account}")


def run_operator(machine, words):
    return machine(f"cd / && UNDERSONG_HOME={COORDINATOR} runuser -u undersong -- /opt/undersong/bin/undersong {words}")


def run_hospital(machine, words, **options):
    where = f"UNDERSONG_PARTY_HOME={PARTY} XDG_STATE_HOME=/var/lib/undersong-party/state"
    program = "/opt/undersong/bin/undersong-party"
    return machine(f"cd / && {where} runuser -u undersong-party -- {program} {words}", **options)


def join(machine):
    """Starts a coordinator and its console, and makes the hospital's account one of its parties, with notes."""
    run_operator(machine, "coordinator init --address localhost:7443")
    machine("systemctl start undersong-coordinator undersong-console")
    fingerprint = json.loads(run_operator(machine, "coordinator show --json"))["fingerprint"]
    run_operator(machine, "invite heart --out /var/lib/undersong/heart.package")
    machine("install -m 644 /var/lib/undersong/heart.package /tmp/package")
    request = "/var/lib/undersong-party/request"
    said = run_hospital(machine, f"enroll /tmp/package --fingerprint {fingerprint} --request-out {request}")
    stated = re.search(r"fingerprint: ([0-9a-f-]+)", said)[1]
    machine(f"install -m 644 {request} /tmp/request")
    run_operator(machine, f"sign /tmp/request --fingerprint {stated} --out /var/lib/undersong/grant")
    machine("install -m 644 /var/lib/undersong/grant /tmp/grant")
    run_hospital(machine, "enroll --grant /tmp/grant")
    notes = "".join(
        json.dumps({"text": f"note {number}", "label": "a", "patient": number}) + "\n" for number in range(9)
    )
    machine("install -m 600 -o undersong-party /dev/stdin /var/lib/undersong-party/notes.jsonl", given=notes)
    run_hospital(
        machine,
        "data add /var/lib/undersong-party/notes.jsonl --label-field label --user-field patient"
        " --epsilon 4 --delta 1e-6",
    )


def check_services(machine):
    """Waits until the daemon is connected and both pages answer; all four programs are confined."""

    def soon(condition):
        wait_for(condition, 180.0, said=lambda: machine("journalctl --no-pager -n 60", check=False), every_s=1.0)

    soon(lambda: '"connected"' in run_hospital(machine, "status --json", check=False))
    run_operator(machine, "coordinator healthy")
    for port in (8700, 8701):
        ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/healthz').read().decode())"
        soon(lambda ask=ask: '"ok"' in machine(f'{PYTHON} -c "{ask}"', check=False))
    for name in SERVICES:
        process = machine(f"systemctl show -P MainPID {name}").strip()
        assert re.search(r"Max core file size +0 +0", machine(f"cat /proc/{process}/limits")), name
        assert "NoNewPrivs:\t1" in machine(f"cat /proc/{process}/status"), name


def test_systemd_units_run_coordinator_and_hospital_confined(machine):
    for name, module in (("undersong", OPERATOR), ("undersong-party", HOSPITAL)):
        run_checkout(machine, name, module)
    join(machine)
    machine("systemctl start undersong-party undersong-page")
    check_services(machine)
