"""A terminal at which people of the machine type, each from an account of their own."""

import pwd
from types import SimpleNamespace

from undersong_common.program import owner


def type_from(monkeypatch, uid, *, shell="/bin/sh"):
    """Has what is called from now on be typed by ``sudo`` from the account ``uid``, which has a name of its number."""
    accounts = pwd.getpwuid

    def account(number):
        return SimpleNamespace(pw_name=f"#{uid}", pw_shell=shell) if number == uid else accounts(number)

    monkeypatch.setattr(owner, "pwd", SimpleNamespace(getpwuid=account, getpwnam=pwd.getpwnam))
    monkeypatch.setattr(owner, "_ancestor_uids", lambda: [0, uid, 0])
    monkeypatch.setattr(owner, "_login_uid", lambda: None)
    monkeypatch.setattr(owner, "_is_in_user_namespace", lambda: False)
    monkeypatch.setenv("SUDO_UID", str(uid))
