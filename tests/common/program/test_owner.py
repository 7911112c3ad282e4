"""Whose folder it is: refused before a write with the whole line, and a number without an account works."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.program import owner
from undersong_common.program.machine import fault_of

NOBODY = 54321  # a number without an account
ADA, BERT, PARTY = 40001, 40002, 40003  # two people, and the party's service


def test_a_folder_of_another_account_is_refused_with_the_whole_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/undersong", "run", "plan", "my task.toml", "--name", "x"])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(owner, "_program_folder", None)
    for variable in owner.FOLDER_VARIABLES:  # a fixture of the same process may have set them
        monkeypatch.delenv(variable, raising=False)
    with raises(ConfigurationError, "other-account") as refused:
        owner.check_owner(tmp_path)
    name = pwd.getpwuid(os.getuid()).pw_name
    assert refused.value.remedy == f"run it as sudo -u {name} undersong run plan 'my task.toml' --name x"
    assert "chown" not in str(refused.value)


def test_own_or_missing_folder_passes_the_owner_check(tmp_path):
    owner.check_owner(tmp_path)
    owner.check_owner(tmp_path / "missing")
    owner.check_owner(tmp_path, "coordinator.json")


def test_unreadable_folder_counts_as_another_account_s(tmp_path, monkeypatch):
    def closed(path, *_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(os, "lstat", closed)
    with raises(ConfigurationError, "other-account"):
        owner.check_owner(tmp_path, "coordinator.json")


def test_file_in_another_account_s_folder_gives_a_remedy_with_sudo(tmp_path, monkeypatch):
    owner.work_in(tmp_path)
    monkeypatch.setattr(owner, "_path_owner", lambda path: os.geteuid() + (path == tmp_path))
    fault = fault_of(PermissionError(13, "Permission denied", str(tmp_path / "status.json")))
    assert "sudo -u" in fault.remedy


def test_a_file_that_may_not_be_read_names_its_account(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    path = tmp_path / "plan.json"
    owner.work_in(tmp_path)
    fault = fault_of(PermissionError(13, "Permission denied", str(path)))
    assert "sudo -u" in fault.remedy


def test_file_left_by_another_account_gives_a_remedy_without_sudo(tmp_path, monkeypatch):
    """As root, one would only be sent back to the account of the folder."""
    monkeypatch.setattr(owner, "_path_owner", lambda path: os.geteuid() + (path != tmp_path))
    fault = fault_of(PermissionError(13, "Permission denied", str(tmp_path / "ledger.jsonl")))
    assert fault.remedy == owner.left_there_remedy()
    assert "sudo" not in fault.remedy


def test_account_without_a_name_is_shown_by_its_number():
    assert owner.account_name(NOBODY) == f"#{NOBODY}"
    assert owner.account_name(2**70) == f"#{2**70}"


def caller(monkeypatch, *, ancestors=(), login=None, stated=None, command_uid=PARTY):
    """The account of who types, where the system says this of the processes; $SUDO_UID is ``stated``."""
    monkeypatch.setattr(os, "getuid", lambda: command_uid)
    monkeypatch.setattr(owner, "_ancestor_uids", lambda: [*ancestors, 0])
    monkeypatch.setattr(owner, "_login_uid", lambda: login)
    monkeypatch.setattr(owner, "_is_in_user_namespace", lambda: False)
    monkeypatch.setattr(owner, "_is_of_a_person", lambda uid: uid in (ADA, BERT))
    monkeypatch.delenv("SUDO_UID", raising=False)
    if stated is not None:
        monkeypatch.setenv("SUDO_UID", str(stated))
    return owner.caller_at_terminal()


@pytest.mark.parametrize(
    "processes",
    [
        {"ancestors": (ADA,), "stated": ADA},
        {"ancestors": (PARTY, 0, ADA, ADA), "stated": ADA, "login": ADA},
        {"ancestors": (0, ADA), "stated": 0, "login": ADA},
        {"ancestors": (ADA,), "command_uid": ADA},
        {"ancestors": (ADA,), "command_uid": BERT, "login": ADA},
        {"ancestors": (ADA,), "stated": "x" * 5000},
    ],
    ids=["sudo", "sudo sh", "root's shell", "own folder", "su", "no number"],
)
def test_person_at_a_terminal_is_the_account_that_started_the_command(monkeypatch, processes):
    assert caller(monkeypatch, **processes) == owner.Caller(ADA, f"#{ADA}")


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ({"ancestors": (ADA,), "stated": BERT}, "$SUDO_UID states"),
        ({"stated": BERT}, "$SUDO_UID states"),
        ({"stated": 2**40}, "no person"),
        ({"stated": "9" * 5000}, "no person"),
        ({"ancestors": (ADA,), "login": BERT, "stated": ADA}, "a log-in of"),
        ({"login": BERT, "stated": BERT}, "a log-in of"),
        ({"command_uid": ADA, "login": BERT, "stated": BERT}, "a log-in of"),
        ({"ancestors": (ADA,), "login": 0, "stated": ADA}, "a log-in of"),
        ({"ancestors": (BERT, ADA), "stated": BERT}, "one after the other"),
        ({"ancestors": (NOBODY,), "stated": NOBODY}, "no person"),
        ({}, "no person"),
    ],
    ids=[
        "other",
        "nobody called",
        "too large",
        "too long",
        "log-in",
        "only a log-in",
        "log-in of one's own",
        "root",
        "two",
        "no account",
        "service",
    ],
)
def test_settable_variables_do_not_prove_who_typed_a_command(monkeypatch, processes, words):
    typed_by = caller(monkeypatch, **processes)
    assert words in typed_by.doubt
    assert typed_by.uid in (PARTY, ADA, BERT, NOBODY)


def test_root_that_started_a_command_counts_as_root_under_any_account(monkeypatch):
    assert caller(monkeypatch, stated=0).uid == 0
    assert caller(monkeypatch, login=0).uid == 0


def test_only_an_account_with_a_login_shell_counts_as_a_person_s(monkeypatch):
    assert not owner._is_of_a_person(NOBODY)
    assert not owner._is_of_a_person(2**70)
    for shell, is_person in (("/bin/bash", True), ("", True), ("/usr/sbin/nologin", False), ("/bin/false", False)):
        account = pwd.struct_passwd(("ada", "x", ADA, ADA, "", "/home/ada", shell))
        monkeypatch.setattr(pwd, "getpwuid", lambda _, account=account: account)
        assert owner._is_of_a_person(ADA) is is_person


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_account_is_not_proven_if_the_system_hides_its_processes(monkeypatch, platform):
    def closed(path, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", closed)
    monkeypatch.setattr(sys, "platform", platform)
    assert owner._ancestor_uids() == []
    assert owner._login_uid() is None
    assert owner._is_in_user_namespace() is (platform == "linux")
    assert not owner._is_time_shifted()


@pytest.mark.parametrize("offset", ["90000", "-90000"])
def test_uptime_shifted_by_a_time_namespace_is_doubted(monkeypatch, offset):
    for offsets, is_shifted in (("monotonic 0 0\nboottime 0 0\n", False), (f"boottime   {offset}   0\n", True)):
        monkeypatch.setattr(Path, "read_text", lambda _path, offsets=offsets, **_options: offsets)
        assert owner._is_time_shifted() is is_shifted
    monkeypatch.setattr(owner, "_is_in_user_namespace", lambda: False)
    assert "time namespace" in owner.namespace_doubt()
    assert "time namespace" in owner.caller_at_terminal().doubt


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root takes another account's number")
def test_the_system_tells_which_account_has_started_a_command():
    """As ``su`` and ``sudo`` do it: a process of one account, with root's rights, starts one of another account."""
    script = (
        f"import os; from undersong_common.program import owner; os.setresuid({ADA}, 0, 0)\n"
        "owner.caller_at_terminal()  # loads what another account may not read\n"
        "if os.fork():\n    os.wait()\nelse:\n"
        f"    os.setuid({PARTY}); os.environ['SUDO_UID'] = '{BERT}'; typed_by = owner.caller_at_terminal()\n"
        "    print(typed_by.uid, owner._ancestor_uids()[0], typed_by.doubt, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:2] == [str(ADA), str(ADA)], done.stdout + done.stderr
    assert "$SUDO_UID states another account" in done.stdout


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_user_namespace_is_no_proof_of_an_account():
    script = "from undersong_common.program import owner; print(owner.caller_at_terminal().doubt)"
    command = ["unshare", "--user", f"--map-user={ADA}", sys.executable, "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if "unshare:" in done.stderr:
        pytest.skip("this machine makes no user namespaces")
    assert "in a user namespace" in done.stdout, done.stderr


def test_home_folder_is_the_working_folder_if_the_account_has_none(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.chdir(tmp_path)
    assert owner.home_folder() == tmp_path


def test_empty_home_variable_means_the_account_s_home_and_not_the_root(monkeypatch):
    monkeypatch.setenv("HOME", "")
    assert owner.home_folder() == Path(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a command that was typed with neither --home nor a folder that sudo would pass on."""
    for name in owner.FOLDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(owner, "_program_folder", None)
    owner.work_in(tmp_path / "my home")
    return tmp_path / "my home"


def line_of(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/undersong", *arguments])
    return owner.command_line(NOBODY)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "list"), ("run", "list", "--home", "{folder}")),
        (("run", "list", "--home", "x"), ("run", "list", "--home", "x")),
        (("run", "list", "--home=x"), ("run", "list", "--home=x")),
        (("run", "show", "--", "-x"), ("run", "show", "--home", "{folder}", "--", "-x")),
    ],
)
def test_command_line_names_the_folder_that_no_option_names(folder, monkeypatch, arguments, expected):
    words = [word.replace("{folder}", str(folder)) for word in expected]
    assert shlex.split(line_of(monkeypatch, *arguments)) == ["sudo", "-u", f"#{NOBODY}", "undersong", *words]


def test_sudo_line_keeps_only_the_folders_of_the_named_account(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/somebody/else/.cache")
    monkeypatch.setattr(owner, "_path_owner", lambda path: NOBODY if path.is_relative_to(tmp_path) else 0)
    words = shlex.split(line_of(monkeypatch, "run", "list"))
    assert words[3:6] == ["env", f"XDG_STATE_HOME={tmp_path / 'state'}", "undersong"]


def test_unreadable_file_outside_the_folder_gives_a_remedy_without_sudo(folder, tmp_path, monkeypatch):
    """The account of somebody's notes could read them, and not the folder for which they are."""
    monkeypatch.setattr(owner, "_path_owner", lambda path: NOBODY)
    remedy = owner.account_remedy(tmp_path / "notes.csv")
    assert "sudo" not in remedy
    assert f"#{NOBODY}" in remedy
    assert owner.account_name(os.geteuid()) in remedy
    assert "sudo -u" in owner.account_remedy(folder / "ledger.jsonl")


@pytest.mark.heavy
@pytest.mark.skipif(os.getuid() != 0, reason="only root takes another account's number")
def test_user_number_without_an_account_can_make_a_party(tmp_path):
    os.chmod(tmp_path, 0o777)
    script = (
        f"import os; os.setgid({NOBODY}); os.setuid({NOBODY}); os.chdir('{tmp_path}');"
        " from undersong_client.cli.app import main; import sys;"
        " sys.argv = ['undersong-party', 'init', 'two', '--home', 'home']; main()"
    )
    for folder in tmp_path.parents:
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            pytest.skip(f"{folder} is closed to other accounts")
    done = subprocess.run([sys.executable, "-c", script], env={}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home" / "settings.json").stat().st_uid == NOBODY
