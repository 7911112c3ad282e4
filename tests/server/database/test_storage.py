"""The coordinator's storage, in SQLite and in a real PostgreSQL: what is kept, and by whom."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from tests.doubles.coded import raises
from tests.doubles.postgres import Line, PostgresServer
from tests.doubles.processes import environment
from tests.doubles.stream import Credentials, make_home
from undersong_common.errors import ConfigurationError, InternalError
from undersong_server.coordinator import home as homes
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import SCHEMA, SCHEMA_VERSION, Registry
from undersong_server.database import interface, postgres, turn
from undersong_server.database import lease as leases
from undersong_server.database.interface import ENTRIES, LEASE, LEASE_S, LONGEST_LEASE_S, Away, Superseded
from undersong_server.database.journal import Journal
from undersong_server.database.lease import Lease
from undersong_server.database.postgres import STALLED_MS, Postgres, _Translated
from undersong_server.database.shared_files import FILES, SharedFiles
from undersong_server.database.sqlite import Sqlite
from undersong_server.database.storage import Storage
from undersong_server.database.turn import await_turn, take_turn
from undersong_server.operations import coordinator
from undersong_server.runs.folder import RequestedAction, RunStatus
from undersong_server.runs.planning import Planned


def take(home, holder, *, standby=False):
    return take_turn(home.storage, home.candidate(holder), standby=standby)


def await_its_turn(home, stack, *, standby):
    return await_turn(home.storage, home.candidate(), stack, standby=standby, meanwhile=home.copy_shared)


TABLES = LEASE + ENTRIES + FILES + SCHEMA
LEASED_S = 0.2
BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as found:
        yield found


@pytest.fixture
def target(server):
    made = server.database()
    Postgres.create(made, TABLES)
    return made


@pytest.fixture(params=BACKENDS)
def opened(request, tmp_path):
    """Opens the same tables once more, under an epoch."""
    with ExitStack() as stack:
        if request.param == "postgres":
            made = request.getfixturevalue("target")
            yield lambda epoch=None: stack.enter_context(closing(Postgres(made, epoch)))
        else:
            path = tmp_path / "tables.sqlite"
            yield lambda epoch=None: stack.enter_context(closing(Sqlite(path, TABLES, epoch=epoch)))


def test_journals_of_several_runs_in_one_database_do_not_mix_keys(opened):
    journal, other = Journal(opened(), "one/"), Journal(opened(), "one/2/")
    journal.put_all([("a", b"1"), ("a/b", b"\0\xff"), ("ä", b"")])
    other.put("a", b"other")
    journal.put("a", b"1")
    with raises(InternalError, "second-value"):
        journal.put_all([("c", b"2"), ("a", b"3")])
    assert journal.get("c") is None  # all or none
    assert journal.items("a") == {"a": b"1", "a/b": b"\0\xff"}
    journal.exchange(["ä"], [("d", b"4")], forgotten="a")
    assert sorted(journal.items("")) == ["2/a", "2/journal/version", "d", "journal/version"]
    assert (journal.get("d"), other.get("a")) == (b"4", b"other")


def test_full_name_table_is_created_when_the_first_name_is_stored(opened):
    registry = Registry(opened())
    registry.invite("alpha", b"token", expires_at=2e9, now=1e9)
    assert not registry.database.has_table("full_name")
    assert registry.full_names() == {}
    registry.note_full_name("alpha", "Alpha Clinic, Faro")
    registry.note_full_name("alpha", "Alpha Hospital, Porto")
    assert Registry(opened()).party("alpha").full_name == "Alpha Hospital, Porto"


def test_replaced_lease_holder_cannot_write_any_more(opened):
    place = opened()
    first = place.take("one", 60.0)
    old = Journal(opened(first), "run/")
    old.put("before", b"1")
    if place.remote:
        assert place.take("two", 60.0) is None
        assert place.renew(first, 0.0)
    second = place.take("two", 60.0)
    assert second > first
    assert place.last == (second, "two", True)
    new = Journal(opened(second), "run/")
    new.put("after", b"2")
    with raises(Superseded, "superseded"):
        old.put("late", b"3")
    with raises(Superseded, "superseded"):
        old.put("after", b"2")  # the same value neither
    with raises(Superseded, "superseded"):
        SharedFiles(opened(first)).put("run", {"status.json": b"{}"})
    with raises(Superseded, "superseded"):
        Registry(opened(first)).touch({})
    assert not place.renew(first)
    assert new.get("late") is None
    assert old.get("before") == b"1"  # whoever reads may


def test_a_registry_of_another_release_is_refused_and_stays_as_it_is(tmp_path):
    path = tmp_path / "registry.sqlite"
    with closing(Sqlite(path, "CREATE TABLE IF NOT EXISTS party (name TEXT)", version=1)):
        pass
    before = path.read_bytes()
    with raises(ConfigurationError, "registry-version"):
        Storage(tmp_path, schema=SCHEMA, version=SCHEMA_VERSION).registry()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {path.name: before}


def test_lease_epoch_is_never_lower_than_the_current_time(opened):
    place, now = opened(), time.time()
    epoch = place.take("one", 0.0)
    assert now - 2.0 < epoch < now + 2.0
    assert place.take("one", 0.0) == epoch + 1


@pytest.fixture
def clocked(tmp_path):
    """Opens the same tables once more, with a lease by a clock that the test sets, as a database server's may be."""

    class Clocked(Sqlite):
        remote = True
        at = time.time()
        now = property(lambda self: f"{self.at:.3f}")

    with ExitStack() as stack:

        def opened(epoch=None):
            return stack.enter_context(closing(Clocked(tmp_path / "tables.sqlite", TABLES, epoch=epoch)))

        opened.step = lambda seconds: setattr(Clocked, "at", Clocked.at + seconds)
        yield opened


@pytest.mark.parametrize("step", [-3600.0, -30.0, 30.0, 3600.0])
def test_lease_holder_that_renews_survives_steps_of_the_database_clock(clocked, step):
    place = clocked()
    epoch = place.take("one")
    clocked.step(step)
    assert place.renew(epoch)
    assert place.take("two") is None
    Journal(clocked(epoch), "run/").put("a", b"1")
    clocked.step(LEASE_S + 1)
    assert place.take("two") > epoch


@pytest.mark.parametrize("step", [-3600.0, 30.0, 3600.0])
def test_only_the_latest_lease_holder_can_write_after_a_clock_step(clocked, step):
    place = clocked()
    epoch = place.take("one")
    journal = Journal(clocked(epoch), "run/")
    clocked.step(step)
    later = place.take("two")
    assert later > epoch
    assert not place.renew(epoch)
    with raises(Superseded, "superseded"):
        journal.put("late", b"1")
    Journal(clocked(later), "run/").put("late", b"2")


def test_clock_set_back_delays_a_takeover_by_at_most_a_minute(clocked):
    place = clocked()
    place.take("one")
    clocked.step(LEASE_S - LONGEST_LEASE_S)
    assert place.take("two") is None
    clocked.step(LONGEST_LEASE_S + 1)
    assert place.take("two") is not None


def test_clock_that_is_a_day_off_cannot_take_the_lease_of_a_live_process(clocked, monkeypatch):
    place = clocked()
    epoch = place.take("one")
    clocked.step(2 * 86400.0)
    with raises(ConfigurationError, "epoch-ahead"):
        place.take("two")
    clocked.step(-2 * 86400.0)
    assert place.last == (epoch, "one", True)
    clocked.step(LEASE_S + 1)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 2 * 86400.0)  # the other machine's own
    with raises(ConfigurationError, "epoch-ahead"):
        place.take("two")
    assert place.renew(epoch)
    Journal(clocked(epoch), "run/").put("a", b"1")


def test_only_changed_files_are_copied_and_status_files_last(opened, tmp_path):
    files = SharedFiles(opened())
    files.put("a run", {"status.json": b"1", "plan.json": b"2", "output/corpus.jsonl": b"3"})
    folder = tmp_path / "runs"
    (folder / "a run").mkdir(parents=True)
    (folder / "a run" / "plan.json").write_bytes(b"2")

    def changed(*names):
        return [(path.name, data) for path, data in files.changed(folder, *names)]

    assert changed("plan.json") == []
    assert changed() == [("corpus.jsonl", b"3"), ("status.json", b"1")]
    assert changed() == []
    files.put("a run", {"plan.json": b"4"})
    assert changed("plan.json") == [("plan.json", b"4")]
    assert files.get("a run", "plan.json") == b"4"
    assert files.get("another", "plan.json") is None


@pytest.mark.parametrize(
    "place", [("../../x", "plan.json"), ("x", "../../authority/ca.key"), ("x", "/etc/x"), ("", "x")]
)
def test_shared_file_with_a_name_outside_the_runs_is_refused(tmp_path, place):
    files = SharedFiles(Sqlite(tmp_path / "tables.sqlite", TABLES))
    files.put(place[0], {place[1]: b"1"})
    with raises(ConfigurationError, "shared-name"):
        list(files.changed(tmp_path / "runs"))


def test_new_lease_holder_sees_every_write_begun_under_the_old_lease(opened, monkeypatch):
    place, fenced = opened(), threading.Event()
    epoch = place.take("one", 60.0)
    old = opened(epoch)
    journal = Journal(old, "")
    if place.remote:
        assert place.renew(epoch, LEASED_S)
    fence = type(old).fence

    def slowly(database, statements):
        fence(database, statements)
        if database is old:
            fenced.set()
            time.sleep(3 * LEASED_S)

    monkeypatch.setattr(type(old), "fence", slowly)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(journal.put, "a", b"1")
        assert fenced.wait(5.0)
        while place.take("two", 60.0) is None:
            time.sleep(0.01)
        assert Journal(opened(), "").get("a") == b"1"  # now, and not a moment later
        written.result()
    with raises(Superseded, "superseded"):
        journal.put("b", b"2")


def test_process_replaced_on_a_local_folder_cannot_write_any_more(tmp_path):
    first, second = (make_home(tmp_path / "home"), CoordinatorHome(tmp_path / "home"))
    with first.hold():
        _, epoch = take(first, "first")
        run = first.run("a run")
        old = run.journal(epoch)
        old.put("a", b"1")
        old_registry = first.registry()
        # Somebody removes the lock files of a process that seems to hang, and starts another one.
        (tmp_path / "home" / "serving.lock").unlink()
        run.journal_path.with_suffix(".lock").unlink()
        with second.hold():
            _, later = take(second, "second")
            with closing(second.run("a run").journal(later)) as new:
                new.put("b", b"2")
            for late in (lambda: old.put("c", b"3"), lambda: old_registry.touch({"heart": 1.0})):
                with raises(Superseded, "superseded"):
                    late()
    old.close()


@pytest.mark.slow
def test_postgresql_registry_admits_and_refuses_parties_like_a_file(server, tmp_path):
    home = make_home(tmp_path / "home", storage=server.database())
    keys = Credentials(home, "heart")
    with closing(home.registry()) as registry:
        party = registry.party("heart")
        assert (party.state, party.identity) == ("enrolled", keys.identity.public_key().public_bytes_raw().hex())
        serial = registry.database.rows("SELECT serial FROM certificate")[0]["serial"]
        assert registry.refusals({"heart": serial}, now=time.time()) == {}
        home.revoke("heart", "left", now=time.time())
        assert "was revoked" in registry.refusal("heart", serial, now=time.time())
    with raises(ConfigurationError, "party-revoked"):
        home.invite("heart", now=time.time())
    with raises(ConfigurationError, "coordinator-exists"):
        make_home(tmp_path / "other", storage=home.settings.storage)
    other = make_home(tmp_path / "another")
    other.change(storage=home.settings.storage)
    with raises(ConfigurationError, "other-coordinator"):
        take(CoordinatorHome(other.path), "a stranger")


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [2**63 - 2, round(time.time() + 10 * 86400)], ids=["last", "ten days ahead"])
def test_stored_epoch_far_in_the_future_is_replaced_by_the_current_time(server, tmp_path, epoch):
    home = make_home(tmp_path / "home", storage=server.database())
    with Postgres(home.settings.storage).writing() as statements:
        statements.execute("UPDATE lease SET epoch = ?, until = 0", (epoch,))
    assert abs(take(home, "one")[1] - time.time()) < 60.0


@pytest.mark.slow
def test_lease_is_refused_when_the_databases_clock_is_far_ahead(server, tmp_path, monkeypatch):
    home = make_home(tmp_path / "home", storage=server.database())
    monkeypatch.setattr(Postgres, "now", f"({Postgres.now} + 864000.0)")
    with raises(ConfigurationError, "epoch-ahead"):
        take(home, "one")


@pytest.mark.slow
def test_replaced_lease_holder_cannot_open_a_new_journal(server, tmp_path):
    home = make_home(tmp_path / "home", storage=server.database())
    assert take(home, "one") is not None
    Postgres(home.settings.storage).renew(home.epoch, 0.0)
    assert Postgres(home.settings.storage).take("two") is not None
    with raises(Superseded, "superseded"):
        home.run("a run").journal()


@pytest.mark.slow
def test_lease_cannot_be_taken_while_a_hanging_process_holds_the_folder(server, tmp_path):
    home = make_home(tmp_path / "home", storage=server.database())
    with home.hold(), ExitStack() as stack, raises(ConfigurationError, "coordinator-in-use"):
        await_its_turn(CoordinatorHome(home.path), stack, standby=False)
    assert home.storage.last_turn[0] == 0


@pytest.mark.slow
def test_standby_of_another_release_or_with_other_settings_is_refused(server, tmp_path, monkeypatch):
    one = make_home(tmp_path / "one", storage=server.database())
    (tmp_path / "two").mkdir()
    for name in ("authority", "coordinator.json"):
        subprocess.run(["cp", "-r", one.path / name, tmp_path / "two"], check=True)
    two = CoordinatorHome(tmp_path / "two")
    assert take(two, "before any other", standby=True) is not None
    assert Postgres(two.settings.storage).renew(two.epoch, 0.0)
    assert take(one, "one") is not None
    serving = one.storage.last_turn

    def refused(words):
        with ExitStack() as stack, raises(ConfigurationError, "other-standby") as caught:
            await_its_turn(CoordinatorHome(two.path), stack, standby=True)
        assert words in str(caught.value)
        assert one.storage.last_turn == serving

    for change, words in (
        ({"addresses": ("other:7443",)}, "addresses 'other:7443' here, 'localhost:7443' there"),
        ({"drill": True}, "drill 'True' here, 'False' there"),
        ({"name": "another"}, "name 'another' here, 'coordinator' there"),
    ):
        two.change(**change)
        refused(words)
        two.change(**{name: getattr(one.settings, name) for name in change})
    two.change(bind="127.0.0.1:1", metrics="127.0.0.1:2")  # which may differ
    two = CoordinatorHome(two.path)
    assert take(two, "two", standby=True) is None
    monkeypatch.setattr(homes, "SOFTWARE", "undersong 9.9.9")
    refused("release 'undersong 9.9.9' here")
    assert Postgres(one.settings.storage).renew(one.epoch, 0.0)
    serving = one.storage.last_turn
    refused("release 'undersong 9.9.9' here")  # nor does it serve beside nobody
    assert take(two, "two") is not None  # which the operator has asked for
    monkeypatch.undo()
    with raises(ConfigurationError, "other-standby"):
        take(CoordinatorHome(one.path), "one", standby=True)


@pytest.mark.slow
def test_silent_database_connection_ends_the_lease_holder_not_the_standby(server, target, monkeypatch, caplog):
    monkeypatch.setattr(postgres, "SILENT_S", 0.5)
    monkeypatch.setattr(leases, "LOST_S", 1.0)
    monkeypatch.setattr(interface, "PATIENCE_S", 0.0)
    with closing(Line(server, target)) as line:
        place = Postgres(line.target)
        epoch = place.take("one")
        journal = Journal(Postgres(line.target, epoch), "run/")
        lost = threading.Event()
        lease = Lease(place, epoch, lost.set)
        line.flows.clear()
        with pytest.raises(Away):
            journal.put("late", b"old")
        assert lost.wait(20.0)
        assert isinstance(lease.lost_by, Away)
        assert "the lease was not renewed: PostgreSQL does not answer" in caplog.text
        while (later := Postgres(target).take("two")) is None:
            time.sleep(0.1)
        Journal(Postgres(target, later), "run/").put("late", b"new")
        line.flows.set()
        with raises(Superseded, "superseded"):
            journal.put("later", b"old")
        lease.end()


def test_lease_holder_paused_for_long_learns_that_another_took_over(monkeypatch):
    now = [0.0]
    answers = iter([True, Away("PostgreSQL does not answer"), False])

    class Remote:
        remote = True

        def renew(self, epoch, lease_s=None):
            answer = next(answers, False)
            if isinstance(answer, Away):
                now[0] += 40.0  # the time of the stop
                raise answer
            return answer

        def close(self):
            pass

    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(leases, "RENEW_S", 0.001)
    lost = threading.Event()
    lease = Lease(Remote(), 7, lost.set)
    assert lost.wait(10.0)
    lease.end()
    assert isinstance(lease.lost_by, Superseded)


@pytest.mark.slow
def test_a_standby_says_why_it_cannot_take_over(server, tmp_path, monkeypatch, caplog):
    with closing(Line(server, made := server.database())) as line:
        home = make_home(tmp_path / "home", storage=line.target)
        line.flows.clear()

        def answers(_seconds):
            line.flows.set()

        monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=time.monotonic, sleep=answers))
        with ExitStack() as stack, caplog.at_level(logging.INFO):
            assert await_its_turn(home, stack, standby=True) is not None
        assert "cannot take over: PostgreSQL does not answer" in caplog.text
        assert Postgres(made).last[2]


@pytest.mark.slow
def test_run_planned_on_one_machine_is_readable_on_its_standby(server, tmp_path):
    one = make_home(tmp_path / "one", ["heart"], storage=server.database())
    (tmp_path / "two").mkdir()
    for name in ("authority", "coordinator.json"):
        subprocess.run(["cp", "-r", one.path / name, tmp_path / "two"], check=True)
    two = CoordinatorHome(tmp_path / "two")
    planned = Planned("first", {}, str(tmp_path), ("heart",), 0, None, 5.0)
    one.run("first").create(planned)
    assert [run.name for run in two.copy_shared("plan.json", "requested.json")] == ["first"]
    assert (two.run("first").planned(), two.run("first").status().state) == (planned, "planned")
    with raises(ConfigurationError, "run-exists"):
        CoordinatorHome(tmp_path / "two").run("first").create(planned)
    one.run("first").request("run")
    two.run("first").request("pause")  # before it was copied
    one.copy_shared()
    assert one.run("first").requested() == RequestedAction("pause", 2)
    assert not two.served
    assert take(one, "one") is not None
    assert two.served
    one.run("first").output.mkdir()
    (one.run("first").output / "synthetic.jsonl").write_text("{}\n")
    one.run("first").share_output()
    one.run("first").write_status(RunStatus("finished", 2), durable=True)
    two.copy_shared()
    assert (two.run("first").output / "synthetic.jsonl").read_text() == "{}\n"
    assert two.run("first").status().state == "finished"
    with raises(ConfigurationError, "backup-elsewhere"):
        coordinator.back_up(one.path, tmp_path / "backup")


@pytest.mark.slow
def test_database_locks_of_a_stopped_lease_holder_are_freed_at_once(server, tmp_path):
    home = make_home(tmp_path / "home", storage=server.database())
    _, first = take(home, "one")
    stopped = Postgres(home.settings.storage, first)
    with contextlib.closing(stopped._open_connection()) as left_open:
        # As one that was stopped within a statement: the server's timeout does not count then.
        left_open.execute("SET idle_in_transaction_session_timeout = 0")
        left_open.execute("BEGIN")
        left_open.execute("INSERT INTO entry VALUES ('run/late', 'old')")
        next_ = CoordinatorHome(home.path)
        with closing(next_.registry()) as registry:
            assert registry.database.renew(first, 0.0)
        since = time.monotonic()
        _, second = take(next_, "two")
        with closing(next_.run("run").journal(second)) as journal:
            journal.put("late", b"new")
            assert time.monotonic() - since < 3.0
            assert journal.get("late") == b"new"


@pytest.mark.slow
@pytest.mark.parametrize("forwarded", [True, False])
def test_commit_without_an_answer_is_looked_up_before_the_next_write(server, target, forwarded):
    with closing(Line(server, target)) as line:
        epoch = Postgres(target).take("one", 600.0)
        journal = Journal(Postgres(line.target, epoch), "run/")
        with closing(Registry(Postgres(line.target, epoch))) as registry:
            journal.put("a", b"1")
            line.forwarded, line.cut = forwarded, b"COMMIT"
            journal.put("b", b"2")
            assert line.cuts == 1
            assert Journal(Postgres(target), "run/").get("b") == b"2"
            line.cut = b"COMMIT"
            # What is no journal's is not written again by itself: its caller is told that nothing was kept.
            if forwarded:
                registry.invite("heart", b"1" * 32, expires_at=1e12, now=0.0)
            else:
                with pytest.raises(Away):
                    registry.invite("heart", b"1" * 32, expires_at=1e12, now=0.0)
            assert [party.name for party in registry.parties()] == (["heart"] if forwarded else [])
        line.cut = b"SELECT value"
        assert journal.get("b") == b"2"
        assert line.cuts == 3


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 12])
def test_lost_commit_is_written_again_though_its_number_was_reused(monkeypatch, others):
    with PostgresServer() as server:
        target = server.database()
        Postgres.create(target, TABLES)
        epoch = Postgres(target).take("one", 600.0)
        journal = Journal(Postgres(target, epoch), "run/")
        copy = server.replica()
        journal.put("lost", b"1")  # so that the copy has not come to the numbers of later transactions
        execute = _Translated.execute

        def dies(connection, sql, values=()):
            if sql == "COMMIT":
                monkeypatch.setattr(_Translated, "execute", execute)
                server.fail_over(copy)
                other = Postgres(target)
                for _ in range(others):  # as the thread that renews the lease does
                    other.renew(epoch, 600.0)
            return execute(connection, sql, values)

        monkeypatch.setattr(_Translated, "execute", dies)
        journal.put("question", b"2")
        assert Journal(Postgres(target), "run/").get("question") == b"2"
        assert int(server.run_sql("SELECT pg_current_xact_id()", target.rpartition("=")[2])) > others


@pytest.mark.slow
def test_database_outage_shorter_than_the_lease_does_not_lose_it(server, target):
    place = Postgres(target)
    epoch = place.take("one")
    lost = []
    lease = Lease(place, epoch, lambda: lost.append(True))
    journal = Journal(Postgres(target, epoch), "run/")
    for number in range(2):
        journal.put(str(number), b"1")
        server.stop()
        server.start()
    journal.put("last", b"1")
    assert not lost
    lease.end()
    assert len(Journal(Postgres(target), "run/").items("")) == 4
    assert place.take("two") is not None  # at once: the lease was given back


@pytest.mark.parametrize(("failures", "is_lost"), [(13, False), (14, True)])
def test_lease_holder_stops_15_s_after_its_last_successful_renewal_began(monkeypatch, failures, is_lost):
    """However long the holder has served: here for a minute, of renewals that take a second."""
    outcomes = [True] * 60 + [False] * failures + [True]
    now_s = 0.0
    ended = threading.Event()
    monkeypatch.setattr(leases, "RENEW_S", 0.0)
    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: now_s))

    def renew(*_):
        nonlocal now_s
        now_s += 1.0
        is_renewed = outcomes.pop(0) if outcomes else True
        if not outcomes:
            ended.set()
        if not is_renewed:
            raise Away("PostgreSQL does not answer")
        return True

    lost = []
    lease = Lease(
        SimpleNamespace(remote=True, renew=renew, close=lambda: None), 1, lambda: (lost.append(1), ended.set())
    )
    assert ended.wait(20.0)
    lease.end()
    assert (lost == [1]) is is_lost
    assert isinstance(lease.lost_by, Away) is is_lost


@pytest.mark.slow
@pytest.mark.parametrize("failures", [0, 1])
def test_ending_lease_is_released_even_after_a_lost_connection(failures):
    outcomes, terms_s = [Away("PostgreSQL does not answer")] * failures, []

    def renew(_epoch, lease_s=LEASE_S):
        if outcomes:
            raise outcomes.pop()
        terms_s.append(lease_s)
        return True

    Lease(SimpleNamespace(remote=True, renew=renew, close=lambda: None), 1, lambda: None).end()
    assert terms_s == [0.0]


def test_empty_or_missing_database_is_reported_without_its_password(server):
    with raises(ConfigurationError, "storage"):
        Postgres(server.database()).rows("SELECT 1")
    with pytest.raises(Away) as caught:
        Postgres("host=/tmp/nowhere password=hunter2").take("one")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Postgres("password=hunter2"))


# A holder that stops itself once the named step of a write is reached, and says what became of it afterwards.
HOLDER = """
import os, signal, sys, threading, time
from undersong_server.database import lease, postgres
from undersong_server.database.journal import Journal
from undersong_common.errors import UndersongError

target, step = sys.argv[1:]
place = postgres.Postgres(target)
epoch = place.take("holder")
lease.Lease(place, epoch, lambda: None)
journal = Journal(postgres.Postgres(target, epoch), "run/")
journal.put("first", b"1")
execute = postgres._Translated.execute

def stop():
    print(time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def stopping(self, sql, values=()):
    mine = threading.current_thread() is threading.main_thread()
    after = {"begun": "pg_current_xact_id", "fenced": "FOR SHARE"}.get(step, "nothing")
    found = None if step == "committing" and sql == "COMMIT" else execute(self, sql, values)
    if mine and (after in sql or (step == "committing" and sql == "COMMIT")):
        postgres._Translated.execute = execute
        stop()
    return execute(self, sql, values) if found is None else found

postgres._Translated.execute = stopping
if step == "idle":
    stop()
try:
    journal.put("late", b"old")
    print("kept")
except UndersongError as error:
    print(error.code or type(error).__name__)
"""


@pytest.mark.slow
def test_lease_holder_paused_during_a_write_cannot_commit_after_takeover(server):
    places = {}
    for step in ("idle", "begun", "fenced", "committing"):
        target = server.database()
        Postgres.create(target, TABLES)
        program = [sys.executable, "-c", HOLDER, target, step]
        places[step] = target, subprocess.Popen(program, env=environment(), stdout=subprocess.PIPE, text=True)
    stopped_at = {step: float(process.stdout.readline()) for step, (_, process) in places.items()}
    epochs, took = {}, {}
    while len(epochs) < len(places):
        for step, (target, _) in places.items():
            if step not in epochs and (epoch := Postgres(target).take("standby", 600.0)) is not None:
                epochs[step], took[step] = epoch, time.monotonic() - stopped_at[step]
                Journal(Postgres(target, epoch), "run/").put("late", b"new")
        time.sleep(0.1)
    assert max(took.values()) < 10.0, took
    assert min(took.values()) > LEASE_S - 2.0
    assert STALLED_MS < 10_000
    for step, (target, process) in places.items():
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=60)
        assert said.strip() == "superseded", (step, said)
        assert Journal(Postgres(target), "run/").get("late") == b"new"


def test_epoch_taken_while_the_clock_was_fast_is_not_continued(tmp_path, caplog):
    path, ahead = tmp_path / "registry.sqlite", int(time.time()) + 400 * 86400
    with closing(Sqlite(path, LEASE + ENTRIES)) as place:
        place.take("one")
        with place.writing() as statements:
            statements.execute("UPDATE lease SET epoch = ?", (ahead,))
        epoch = place.take("one")
    assert abs(epoch - time.time()) < 60.0
    assert "is not gone on from" in caplog.text


def test_journal_last_written_under_a_future_epoch_accepts_writes(tmp_path):
    path, now = tmp_path / "journal.sqlite", int(time.time())
    for epoch in (now + 400 * 86400, now):
        with closing(Sqlite(path, ENTRIES, epoch=epoch)) as place, place.writing() as statements:
            statements.execute("INSERT INTO entry VALUES (?, ?)", (str(epoch), b"1"))
    with closing(Sqlite(path, ENTRIES)) as place:
        assert len(place.rows("SELECT key FROM entry")) == 2
