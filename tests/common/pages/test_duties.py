"""Who has given somebody rights is none of the two for a day, whatever a clock says and wherever they decide."""

from contextlib import closing

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.pages import duties as duties_module
from undersong_common.pages.accounts import Accounts
from undersong_common.pages.duties import DAY_S, Duties, provider_key
from undersong_common.pages.store import PageStore
from undersong_common.program.uptime import Instant

HOUR_S = 3600.0


class Machine:
    """A machine whose clock and uptime a test sets."""

    def __init__(self, monkeypatch):
        self.at, self.boot, self.up = 1e9, "first", 100.0
        monkeypatch.setattr(duties_module, "instant", lambda _clock: Instant(self.at, self.boot, self.up))

    def pass_time(self, seconds):
        self.at += seconds
        self.up += seconds

    def restart(self, boot="second"):
        self.boot, self.up = boot, 0.0


@pytest.fixture
def timed_machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.fixture
def duties(tmp_path):
    store = PageStore(tmp_path)
    yield Duties(store)
    store.close()


def test_day_of_exclusion_passes_by_the_machine_s_uptime(timed_machine, duties):
    duties.note_act(["ada"])
    for passed_s, is_excluded in ((0.0, True), (DAY_S - 1, True), (1, False)):
        timed_machine.pass_time(passed_s)
        assert bool(duties.exclusion(["ada"])) is is_excluded


@pytest.mark.parametrize("clock_s", [25 * HOUR_S, 400 * DAY_S, -2 * DAY_S])
def test_wrong_clock_does_not_shorten_the_day_of_exclusion(timed_machine, duties, clock_s):
    """The attack: a clock that was ahead for one command deleted what excludes a person."""
    duties.note_act(["ada"])
    timed_machine.at += clock_s
    assert duties.exclusion(["ada"])
    assert duties.exclusion(["ada"]).until_s == timed_machine.at + DAY_S
    timed_machine.at -= clock_s
    timed_machine.pass_time(23 * HOUR_S)
    assert duties.exclusion(["ada"])
    timed_machine.pass_time(HOUR_S)
    assert not duties.exclusion(["ada"])


def test_clock_setting_after_a_restart_deletes_no_exclusion(timed_machine, duties):
    duties.note_act(["ada"])
    timed_machine.restart()
    timed_machine.at += 25 * HOUR_S
    assert not duties.exclusion(["ada"]), "a machine that was restarted has its clock alone"
    timed_machine.at -= 24 * HOUR_S
    assert duties.exclusion(["ada"])


def test_exclusion_noted_by_a_fast_clock_lasts_a_day_of_the_right_clock(timed_machine, duties):
    timed_machine.at += 400 * DAY_S
    duties.note_act(["ada"])
    timed_machine.at -= 400 * DAY_S
    timed_machine.restart()
    assert duties.exclusion(["ada"]).until_s == timed_machine.at + DAY_S
    timed_machine.at -= 2 * DAY_S  # and a clock that is behind for a while shortens it no more
    assert duties.exclusion(["ada"])
    timed_machine.at += 2 * DAY_S
    timed_machine.pass_time(DAY_S - 1)
    assert duties.exclusion(["ada"])
    timed_machine.pass_time(1)
    assert not duties.exclusion(["ada"])


def test_exclusion_follows_the_latest_act_of_each_person(timed_machine, duties):
    for _ in range(3):
        duties.note_act(["ada", "https://id.example 7"])
        timed_machine.pass_time(20 * HOUR_S)
    assert len(duties._store.rows("SELECT * FROM act")) == 2
    assert duties.exclusion(["https://id.example 7"]).until_s == timed_machine.at + 4 * HOUR_S


@pytest.mark.parametrize(
    ("actor", "person", "excluded"),
    [
        ("ada", "ada", "itself"),
        ("ada", "bert", ""),
        ("ada at the terminal", "ada at the terminal", "itself"),
        ("ada at the terminal", "bert at the terminal", ""),
        ("ada at the terminal", "bert", "perhaps"),
        ("ada", "bert at the terminal", "perhaps"),
        ("root at the terminal", "bert", "perhaps"),
        ("root at the terminal", "bert at the terminal", "perhaps"),
    ],
)
def test_giving_rights_excludes_giver_and_perhaps_accounts_of_another_kind(
    timed_machine, duties, actor, person, excluded
):
    duties.note_act([actor])
    exclusion = duties.exclusion([person])
    words = "" if exclusion is None else "itself" if exclusion.is_own else "perhaps"
    assert words == excluded


def test_giving_rights_by_one_of_two_accounts_excludes_both_accounts(timed_machine, duties):
    duties.note_act(["ada", "https://id.example 7"])
    for identities in (["ada"], ["other", "https://id.example 7"]):
        assert duties.exclusion(identities).is_own


KEY, OTHER = (provider_key(f"https://{name}.example", "page") for name in ("id", "other"))


@pytest.mark.parametrize(("former", "role_given"), [(KEY, False), ("", True), (None, True)])
def test_page_cannot_change_the_provider_while_two_people_decide(duties, former, role_given):
    """Also where people of the machine decide, and no page was served yet."""
    if former is not None:
        duties.serve_with(former)
    if role_given:
        duties.give("ada at the terminal", "IT", source="the administrator root")
        duties.give("ada at the terminal", "", source="the administrator root")
    duties.is_provider_fixed = lambda: True
    for provider in (OTHER, "" if former else KEY):
        with raises(ConfigurationError, "other-provider"):
            duties.serve_with(provider)
    duties.serve_with(former or "")
    assert duties.provider == (former or "")
    duties.is_provider_fixed = lambda: False
    duties.serve_with(OTHER)
    assert duties.issuer == "https://other.example"


@pytest.mark.parametrize("former", ["", None, "https://id.example:443/"])
def test_a_first_provider_may_be_named_before_anybody_has_a_role(duties, former):
    """And the address that an earlier version has noted is that provider's."""
    if former is not None:
        duties._store.rows("INSERT INTO setting (name, value) VALUES ('provider', ?)", former)
    duties.is_provider_fixed = lambda: True
    duties.serve_with(KEY)
    assert duties.provider == KEY


@pytest.mark.parametrize("former", ["", None])
def test_naming_the_first_provider_excludes_everybody_for_a_day(timed_machine, duties, former):
    """The attack: after two people decide, and before anybody has a role, one person names a provider of their own."""
    if former is not None:
        duties.serve_with(former)
    duties.serve_with(former or "")
    assert duties.exclusion(["ada", "https://id.example 7"]) is None
    duties.is_provider_fixed = lambda: True
    duties.serve_with(KEY)
    timed_machine.pass_time(DAY_S - 1)
    assert duties.exclusion(["ada", "https://id.example 7"])
    duties.serve_with(KEY)
    timed_machine.pass_time(1)
    assert duties.exclusion(["ada", "https://id.example 7"]) is None


def test_tables_of_groups_cannot_change_once_somebody_has_a_role(timed_machine, duties):
    duties.serve_with(KEY, "staff")
    duties.serve_with(KEY, "staff and IT")
    duties.is_provider_fixed = lambda: True
    duties.serve_with(KEY, "IT")
    assert duties.exclusion(["ada"]), "before that, whoever gives roles so is none of the two"
    assert not duties.is_served_with(KEY, "staff and IT")
    duties.follow_groups("ada", "IT", "it")
    with raises(ConfigurationError, "other-provider"):
        duties.serve_with(KEY, "all")
    duties.serve_with(KEY, "IT")
    assert duties.is_served_with(KEY, "IT")
    duties.is_provider_fixed = lambda: False
    duties.serve_with(KEY, "all")


def test_page_store_of_an_earlier_version_accepts_its_first_group_tables(duties):
    duties._store.rows("INSERT INTO setting (name, value) VALUES ('provider', ?)", KEY)
    duties.is_provider_fixed = lambda: True
    duties.follow_groups("ada", "IT", "it")
    duties.serve_with(KEY, "IT")
    assert duties.is_served_with(KEY, "IT")


@pytest.mark.parametrize(
    ("provider", "tables", "remaining"),
    [
        (KEY, "staff", {"provider", "password"}),
        (KEY, "staff and IT", {"password"}),
        (OTHER, "staff", {"password"}),
    ],
)
def test_changed_provider_or_group_tables_end_the_provider_s_sessions(tmp_path, provider, tables, remaining):
    with closing(PageStore(tmp_path)) as store:
        accounts = Accounts(store)
        accounts.duties.serve_with(KEY, "staff")
        accounts.set_role("ada", "viewer")
        for log_in in ("provider", "password"):
            accounts.begin("ada", address="127.0.0.1", log_in=log_in)
        accounts.duties.serve_with(provider, tables)
        assert {session.log_in for session in accounts.sessions()} == remaining
