"""Every time that a database stores, what becomes of it where it lies ahead of now, and the test of that."""

from __future__ import annotations

import re

import pytest

from tests.doubles.processes import ROOT

ENTERING = "tests/common/pages/test_entering.py::test_what_was_stored_with_the_clock_ahead_ends_once_it_is_right"
AHEAD = "tests/server/coordinator/test_certificates_ahead.py::test_an_invitation_and_certificates_of_a_wrong_clock_shut"
TWO = "tests/client/page/test_hospital_page.py::test_who_has_let_somebody_in_is_none_of_the_two_for_a_day"
SHOWN = ""  # it is shown, ordered or told, and nothing is decided by it
PAGES = "common/undersong_common/pages/store.py"
PARTIES = "server/undersong_server/coordinator/parties.py"
# (file, table, column): (its rule, the beginning of the test's name).
STORED_TIMES = {
    (PAGES, "account", "created_at"): ("shown", SHOWN),
    (PAGES, "account", "let_in_at"): ("counts for a day in either direction", TWO),
    (PAGES, "link", "expires_at"): ("no link lasts longer than a link does", ENTERING),
    (PAGES, "session", "created_at"): ("the session ends", ENTERING),
    (PAGES, "session", "seen_at"): ("the session ends", ENTERING),
    (PAGES, "token", "created_at"): ("the token does not count until then", ENTERING),
    (PAGES, "token", "expires_at"): ("the token's creation lies ahead too", ENTERING),
    (PAGES, "token", "used_at"): ("shown", SHOWN),
    (PAGES, "failure", "at"): ("it is forgotten", ENTERING),
    (PAGES, "action", "at"): ("a finished action is remembered for longer, by a key that is used once", SHOWN),
    (PAGES, "act", "at"): ("it counts as of now", TWO),
    (PARTIES, "party", "token_expires_at"): ("the invitation lies ahead too", AHEAD),
    (PARTIES, "party", "invited_at"): ("the invitation has expired", AHEAD),
    (PARTIES, "party", "enrolled_at"): ("shown", SHOWN),
    (PARTIES, "party", "revoked_at"): ("shown: a party is revoked by its state", SHOWN),
    (PARTIES, "party", "last_seen"): ("shown", SHOWN),
    (PARTIES, "certificate", "issued_at"): ("it keeps nobody from a new certificate", AHEAD),
    (PARTIES, "certificate", "expires_at"): ("its beginning lies ahead too", AHEAD),
    (PARTIES, "certificate", "revoked_at"): ("a certificate is revoked at any time", SHOWN),
    (PARTIES, "former_identity", "replaced_at"): ("it orders a list", SHOWN),
    ("server/undersong_server/storage.py", "lease", "until"): (
        "a lease longer than any is free",
        "tests/server/test_storage.py::test_clock_set_back_keeps_nobody_off_longer_than_a_minute",
    ),
    ("client/undersong_client/storage/store.py", "sent", "at"): ("shown", SHOWN),
}
NO_TIMES = {"epsilon_left"}


def declared_times():
    """(file, table, column) of each column of the kind REAL, in which times are stored."""
    columns = set()
    for room in ("client", "common", "server"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for statement in re.split(r"CREATE TABLE (?:IF NOT EXISTS )?", text)[1:]:
                names = set(re.findall(r"\b([a-z_]+) REAL\b", statement)) - NO_TIMES
                columns |= {(path.relative_to(ROOT).as_posix(), statement.split()[0], name) for name in names}
    return columns


def test_every_stored_time_has_a_rule_for_what_lies_ahead_of_now():
    assert declared_times() == set(STORED_TIMES)


@pytest.mark.parametrize("test", sorted({test for _, test in STORED_TIMES.values() if test}))
def test_a_rule_for_what_lies_ahead_of_now_has_its_test(test):
    path, _, name = test.partition("::")
    assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")
