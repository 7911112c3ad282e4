"""Every time that a database or a file stores, what becomes of it where it lies ahead of now, and the test of that."""

from __future__ import annotations

import ast
import re

import pytest

from tests.doubles.processes import ROOT

ENTERING = "tests/common/pages/test_entering.py::test_sessions_stored_under_a_fast_clock_end_once_it_is_right"
AHEAD = "tests/server/coordinator/test_certificates_ahead.py::test_records_of_a_fast_clock_do_not_block_enrolment"
TWO = "tests/client/page/test_hospital_page.py::test_person_who_let_an_account_in_cannot_be_an_approver_for_a_day"
UNFETCHED = "tests/server/console/test_console.py::test_file_dated_in_the_future_counts_at_once_as_not_downloaded"
NOTED_AHEAD = "tests/common/pages/test_duties.py::test_exclusion_noted_by_a_fast_clock_lasts_a_day_of_the_right_clock"
SHOWN = ""  # it is shown, ordered or told, and nothing is decided by it
PAGES = "common/undersong_common/pages/store.py"
PARTIES = "server/undersong_server/coordinator/parties.py"
# (file, table, column): (its rule, the beginning of the test's name).
STORED_TIMES = {
    (PAGES, "account", "created_at"): ("shown", SHOWN),
    (PAGES, "account", "let_in_at"): ("counts for a day in either direction", TWO),
    (PAGES, "account", "let_in_up"): ("the machine's uptime of one start, which only rises", TWO),
    (PAGES, "link", "expires_at"): ("no link lasts longer than a link does", ENTERING),
    (PAGES, "session", "created_at"): ("the session ends", ENTERING),
    (PAGES, "session", "seen_at"): ("the session ends", ENTERING),
    (PAGES, "token", "created_at"): ("the token does not count until then", ENTERING),
    (PAGES, "token", "expires_at"): ("the token's creation lies ahead too", ENTERING),
    (PAGES, "token", "used_at"): ("shown", SHOWN),
    (PAGES, "failure", "at"): ("it is forgotten", ENTERING),
    (PAGES, "action", "at"): ("a finished action is remembered for longer, by a key that is used once", SHOWN),
    (PAGES, "offer", "made_at"): ("it counts at once as not downloaded", UNFETCHED),
    (PAGES, "offer", "fetched_at"): ("whether it is there decides", SHOWN),
    (PAGES, "act", "at"): ("it counts as of now", NOTED_AHEAD),
    (PAGES, "act", "up"): ("the machine's uptime of one start, which only rises", NOTED_AHEAD),
    (PARTIES, "party", "token_expires_at"): ("the invitation lies ahead too", AHEAD),
    (PARTIES, "party", "invited_at"): ("the invitation has expired", AHEAD),
    (PARTIES, "party", "enrolled_at"): ("shown", SHOWN),
    (PARTIES, "party", "revoked_at"): ("shown: a party is revoked by its state", SHOWN),
    (PARTIES, "party", "last_seen"): ("shown", SHOWN),
    (PARTIES, "certificate", "issued_at"): ("it keeps nobody from a new certificate", AHEAD),
    (PARTIES, "certificate", "expires_at"): ("its beginning lies ahead too", AHEAD),
    (PARTIES, "certificate", "revoked_at"): ("a certificate is revoked at any time", SHOWN),
    (PARTIES, "former_identity", "replaced_at"): ("it orders a list", SHOWN),
    ("server/undersong_server/database/interface.py", "lease", "until"): (
        "a lease longer than any is free",
        "tests/server/database/test_storage.py::test_clock_set_back_delays_a_takeover_by_at_most_a_minute",
    ),
    ("client/undersong_client/storage/store.py", "sent", "at"): ("shown", SHOWN),
}
NO_TIMES = {"epsilon_left"}

APPROVALS = "client/undersong_client/consent/approvals.py"
RESTORED = "tests/client/consent/test_approvals.py::test_first_of_two_approvals_from_before_a_restore_never_counts"
SEEN_LAST = "tests/client/consent/test_approvals.py::test_a_plan_seen_while_the_clock_was_ahead_counts_as_not_seen"
TRUST = (
    "tests/federation/test_clocks_and_versions.py::test_clock_behind_the_certificate_s_beginning_is_named_as_the_cause"
)
RETENTION = "tests/client/link/test_daemon.py::test_daemon_stops_after_the_last_day_of_its_data_set"
SERVER = (
    "tests/server/coordinator/test_certificates_ahead.py::test_server_certificate_that_is_not_yet_valid_is_reissued"
)
ABANDONED = "tests/client/storage/test_erasure.py::test_attempt_that_ends_early_leaves_no_secret_in_any_file"
FOLDER = "server/undersong_server/runs/folder.py"
# (file, field of a class, key of a JSON object or of a chain's entry, or end of a certificate): as above. JSON and TOML
# files, the journal's JSON values and X.509 certificates hold them.
TIMES_IN_FILES = {
    (APPROVALS, "Proposal.received_s"): (
        "the run counts as older than every joining of ids",
        "tests/client/records/test_one_patient.py::test_ids_joined_into_one_patient_are_counted_and_spending_stays",
    ),
    (APPROVALS, "Proposal.decided_s"): ("the plan counts as not seen", SEEN_LAST),
    (APPROVALS, "Proposal.previewed_s"): ("the plan counts as not seen", SEEN_LAST),
    (APPROVALS, "Proposal.restored_s"): ("nobody has approved since", RESTORED),
    (APPROVALS, "Proposal.ended_s"): ("a run ends at any time", SHOWN),
    (APPROVALS, "Proposal.suspended_s"): ("a run is suspended at any time", SHOWN),
    ("client/undersong_client/consent/people.py", "PersonalDecision.at_s"): (
        "the approval was before the restoration",
        RESTORED,
    ),
    ("client/undersong_client/consent/trust.py", "not_valid_before_utc"): ("the clock is named as the cause", TRUST),
    ("client/undersong_client/consent/trust.py", "not_valid_after_utc"): ("its beginning lies ahead too", TRUST),
    ("client/undersong_client/consent/two_people.py", "Wish.at_s"): (
        "nobody has wished it",
        "tests/client/consent/test_two_people.py::test_wish_for_a_looser_policy_dated_in_the_future_does_not_count",
    ),
    ("client/undersong_client/consent/two_people.py", "at_s"): ("the wish's, above", SHOWN),
    ("client/undersong_client/home.py", "PartySettings.keep_until"): ("a day that a person names", RETENTION),
    ("client/undersong_client/home.py", "written_s"): ("shown", SHOWN),
    ("client/undersong_client/link/daemon.py", "answered_s"): ("shown", SHOWN),
    ("client/undersong_client/link/daemon.py", "at_s"): ("shown", SHOWN),
    ("client/undersong_client/link/daemon.py", "since_s"): ("shown", SHOWN),
    ("client/undersong_client/link/daemon.py", "written_s"): ("shown: a lock tells whether the daemon runs", SHOWN),
    ("client/undersong_client/operations/data.py", "at_s"): ("the joining counts as later than the run", SHOWN),
    ("client/undersong_client/operations/evidence.py", "saved_s"): ("shown", SHOWN),
    ("client/undersong_client/records/snapshot.py", "Facts.read_s"): ("shown", SHOWN),
    ("client/undersong_client/storage/attempts.py", "_StartRecord.at"): ("the attempt was abandoned", ABANDONED),
    ("client/undersong_client/storage/addition.py", "append(at)"): ("shown: the chain orders entries", SHOWN),
    ("common/undersong_common/program/machine.py", "HeldStep.since_s"): ("shown", SHOWN),
    ("common/undersong_common/pages/stream.py", "at"): ("no file holds it", SHOWN),
    (PAGES, "append(at)"): ("shown: the chain orders entries", SHOWN),
    (PAGES, "Offer.made_at"): ("it counts at once as not downloaded", UNFETCHED),
    (PAGES, "Offer.fetched_at"): ("whether it is there decides", SHOWN),
    ("server/undersong_server/operations/enrolment.py", "UnfetchedFile.since"): ("as Offer.made_at", UNFETCHED),
    ("server/undersong_server/console/run_pages.py", "downloaded_at"): ("shown", SHOWN),
    ("server/undersong_server/console/run_pages.py", "failed_at"): ("shown", SHOWN),
    ("server/undersong_server/console/run_pages.py", "since"): ("shown", SHOWN),
    ("server/undersong_server/runs/folder.py", "Annotations.downloaded_at"): ("whether it is there decides", SHOWN),
    ("common/undersong_common/privacy/ledger.py", "append(at)"): ("shown: the chain orders entries", SHOWN),
    ("protocol/undersong_protocol/agreement/enrolment.py", "Package.expires_s"): (
        "the coordinator remembers when it invited",
        AHEAD,
    ),
    ("server/undersong_server/authority.py", "not_valid_before"): ("it is issued anew", SERVER),
    ("server/undersong_server/authority.py", "not_valid_before_utc"): ("it is issued anew", SERVER),
    ("server/undersong_server/authority.py", "not_valid_after"): ("its beginning lies ahead too", SERVER),
    ("server/undersong_server/authority.py", "not_valid_after_utc"): ("its beginning lies ahead too", SERVER),
    ("server/undersong_server/coordinator/home.py", "Serving.since"): ("shown: a lock tells who serves", SHOWN),
    ("server/undersong_server/coordinator/home.py", "Serving.stated_at"): ("shown beside its figure", SHOWN),
    ("server/undersong_server/report/evaluations.py", "Evaluated.day"): ("it orders a list", SHOWN),
    ("server/undersong_server/operations/coordinator.py", "made_at"): ("shown", SHOWN),
    (FOLDER, "Awaited.goes_on_at"): ("shown", SHOWN),
    (FOLDER, "Awaited.since"): ("shown", SHOWN),
    (FOLDER, "RunStatus.at"): ("it orders a list", SHOWN),
    (FOLDER, "RunStatus.since"): ("shown", SHOWN),
    (FOLDER, "at"): ("shown", SHOWN),
    ("client/undersong_client/answering/party.py", "epoch/"): (
        "it is forgotten",
        "tests/client/answering/test_epochs.py::test_epoch_heard_while_clock_was_ahead_is_forgotten_once_it_is_right",
    ),
}
# Lasts, settings of lasts, and times that only the memory, a notice, a log line or an answer holds.
NOT_IN_FILES = {
    *(
        "Ended.reconnect_after_s",
        "PendingReply.first_rung_s",
        "Deferral.first_rung_s",
        "Sheet.first_rung_s",
        "Backoff.first_s",
    ),
    *("Backoff.largest_s", "Backoff.refused_s", "PlannedSum.first_rung_s", "SumRequest.first_rung_s", "Waiting.left_s"),
    *("RunOptions.patience_s", "FlowerRunSettings.patience_s", "Speed.busy_s", "Speed.latency_s", "time_s", "s"),
    *("BatchSettings.deadline_s", "BatchSettings.max_wait_s", "BatchSettings.patience_s", "BatchSettings.poll_s"),
    *("BatchSettings.timeout_s", "EndpointSettings.batch_poll_s", "EndpointSettings.deadline_s", "Planned.patience_s"),
    *("EndpointSettings.max_wait_s", "EndpointSettings.timeout_s", "ExchangeOutcome.pause_s", "_Patience.begun_s"),
    *(
        "_Patience.busy_since_s",
        "_OpenRequest.since_s",
        "Deferral.start_s",
        "PendingReply.start_s",
        "DaemonStatus.at_s",
        "silent_s",
        "RunParties.timeout_s",
        "keep_until",
        "certificate_until",
        "Installed.until",
        "date",
        "time",
    ),
    *("Enrolment.valid_until", "_Deletion.at_s", "Entry.at", "OwnFigures.read_s", "Notice.at_s", "Account.created_at"),
    *("Session.created_at", "Session.seen_at", "Token.created_at", "Token.expires_at", "Token.used_at", "let_in_at"),
    *(
        "AuditEntry.at",
        "Download.until",
        "created_at",
        "Presence.since",
        "EnrolledParty.certificate_expires_at",
        "OpenedSum.at",
    ),
    *(
        "EnrolledParty.enrolled_at",
        "EnrolledParty.invited_at",
        "EnrolledParty.revoked_at",
        "Backup.made_at",
        "Invitation.expires_at",
    ),
    *(
        "CoordinatorFacts.certificate_expires_at",
        "Issued.expires_at",
        "Moment.at",
        "Instant.at",
        "Exclusion.until_s",
        "Addition.at",
        "PartyFacts.stated_at",
        "EpsilonLeft.stated_at",
        "stated_at",
    ),
}
NAME = re.compile(r"(^|_)(at|s|since|until|expires|epoch|time|date|day)$")


def names_of_times(tree):
    """Names like times: fields of classes, keys of JSON objects and of chains' entries, ends of certificates."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = (part.target.id for part in node.body if isinstance(part, ast.AnnAssign))
            yield from (f"{node.name}.{name}" for name in fields if NAME.search(name))
        elif isinstance(node, ast.Dict):
            keys = (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            yield from filter(NAME.search, keys)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "append" in node.func.attr:
            yield from (f"append({key.arg})" for key in node.keywords if key.arg and NAME.search(key.arg))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("not_valid"):
            yield node.attr
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            yield from {"epoch/"} & {node.values[0].value}


def times_in_files():
    """(file, name) of each name that may be a time's, without those that no file holds."""
    return {
        (path.relative_to(ROOT).as_posix(), name)
        for room in ("client", "common", "protocol", "server")
        for path in (ROOT / room).rglob("*.py")
        for name in set(names_of_times(ast.parse(path.read_text(encoding="utf-8")))) - NOT_IN_FILES
    }


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


def test_every_stored_time_has_a_rule_for_times_in_the_future():
    assert declared_times() == set(STORED_TIMES)
    assert times_in_files() == set(TIMES_IN_FILES)


@pytest.mark.parametrize(
    "test", sorted({test for _, test in (STORED_TIMES | TIMES_IN_FILES).values() if test != SHOWN})
)
def test_each_rule_for_stored_times_in_the_future_names_a_test(test):
    path, _, name = test.partition("::")
    assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")
