"""Whose folder it is: refused before a write with the whole line, and a number without an account works."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.program import owner
from undersong_common.program.machine import fault_of

NOBODY = 54321  # a number without an account


def test_a_folder_of_another_account_is_refused_with_the_whole_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/undersong", "run", "plan", "my task.toml", "--name", "x"])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with raises(ConfigurationError, "other-account") as refused:
        owner.check_owner(tmp_path)
    name = pwd.getpwuid(os.getuid()).pw_name
    assert refused.value.remedy == f"run it as sudo -u {name} undersong run plan 'my task.toml' --name x"
    assert "chown" not in str(refused.value)


def test_one_s_own_folder_and_a_missing_one_are_no_other_account_s(tmp_path):
    owner.check_owner(tmp_path)
    owner.check_owner(tmp_path / "missing")
    owner.check_owner(tmp_path, "coordinator.json")


def test_a_folder_that_may_not_be_looked_into_is_another_account_s(tmp_path, monkeypatch):
    def closed(path, *_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(os, "lstat", closed)
    with raises(ConfigurationError, "other-account"):
        owner.check_owner(tmp_path, "coordinator.json")


def test_a_file_whose_folder_is_another_account_s_names_that(tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "_path_owner", lambda path: os.geteuid() + (path == tmp_path))
    fault = fault_of(PermissionError(13, "Permission denied", str(tmp_path / "status.json")))
    assert "sudo -u" in fault.remedy


def test_a_file_that_may_not_be_read_names_its_account(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    path = tmp_path / "plan.json"
    fault = fault_of(PermissionError(13, "Permission denied", str(path)))
    assert "sudo -u" in fault.remedy


def test_a_file_that_another_account_left_leads_to_no_other_account(tmp_path, monkeypatch):
    """As root, one would only be sent back to the account of the folder."""
    monkeypatch.setattr(owner, "_path_owner", lambda path: os.geteuid() + (path != tmp_path))
    fault = fault_of(PermissionError(13, "Permission denied", str(tmp_path / "ledger.jsonl")))
    assert fault.remedy == owner.left_there_remedy()
    assert "sudo" not in fault.remedy


def test_an_account_without_a_name_has_its_number(monkeypatch):
    assert owner.account_name(NOBODY) == f"#{NOBODY}"
    for stated, uid in (("", os.getuid()), ("x", os.getuid()), (str(NOBODY), NOBODY)):
        monkeypatch.setenv("SUDO_UID", stated)  # that of who has called sudo
        assert owner.caller_at_terminal() == (uid, owner.account_name(uid))


def test_without_a_home_the_working_folder_stands_in(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.chdir(tmp_path)
    assert owner.home_folder() == tmp_path


@pytest.mark.heavy
@pytest.mark.skipif(os.getuid() != 0, reason="only root takes another account's number")
def test_a_number_without_an_account_makes_a_party_without_any_variable(tmp_path):
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
