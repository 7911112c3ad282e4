"""A daemon that does not start tells its coordinator one of few codes, decided without a look at the records."""

import json
import queue
import time

import pytest

from tests.doubles.coordinator_stream import ScriptedCoordinator
from tests.doubles.party_home import joined, write_notes
from undersong_client.consent import policy
from undersong_client.home import PartyHome
from undersong_client.link import daemon
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError, PrivacyRefusal, TransportError, UndersongError
from undersong_protocol.wire.messages import transport_pb2 as wire

pytestmark = pytest.mark.heavy

DAY_S = 86400.0


@pytest.fixture(scope="module")
def scripted_coordinator(authority):
    with ScriptedCoordinator(authority) as made:
        yield made


@pytest.fixture
def pair(tmp_path, authority, scripted_coordinator):
    """Two copies of a party that differ in their records."""
    made = []
    for place, notes in (("one", {}), ("other", {"records": 3, "labels": ("odd",), "start": 70})):
        folder = tmp_path / place
        folder.mkdir()
        written = write_notes(folder / "notes.jsonl", **notes)
        made.append(PartyHome(joined(folder, authority, address=scripted_coordinator.address, notes=written)))
    return made


@pytest.fixture
def home(pair):
    return pair[0]


def unsigned(home):
    home.policy.write_text("{}")


def of_another_version(home):
    settings = home.path / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "colour": "blue"}))


def nothing(home):
    """The folder is as it was."""


def catch_refusal(home, clock=time.time):
    with pytest.raises(UndersongError) as error:
        daemon.check_start(home, clock=clock, use_proxy=False)
    return error.value


def code(reason):
    return wire.DoesNotStart.Name(reason).lower()


def heard(coordinator, seconds=2.0):
    """The next Hello but for what is drawn at random."""
    hello = wire.Hello()
    hello.CopyFrom(coordinator.next_stream(seconds).hello)
    hello.ClearField("boot")
    return hello


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "clock", "reason", "kind"),
    [
        (unsigned, time.time, wire.DoesNotStart.POLICY, PrivacyRefusal),
        (of_another_version, time.time, wire.DoesNotStart.VERSION, ConfigurationError),
        (nothing, lambda: time.time() - 2 * DAY_S, wire.DoesNotStart.CLOCK, TransportError),
        (nothing, lambda: time.time() + 2000 * DAY_S, wire.DoesNotStart.CLOCK, TransportError),
    ],
)
def test_start_failure_code_is_the_same_whatever_the_records_are(
    spoil, clock, reason, kind, pair, scripted_coordinator
):
    pair[1].sealed.unlink()
    told = []
    for home in pair:
        spoil(home)
        error = catch_refusal(home, clock)
        assert isinstance(error, kind)
        assert error.remedy
        told.append(heard(scripted_coordinator))
        sent = Outbox(home)
        assert sent.data(sent.entries()[-1].number).endswith(f"does not start: {code(reason)}".encode())
    assert told[0] == told[1]
    assert told[0] == wire.Hello(version=1, party="alpha", software=told[0].software, does_not_start=reason)


def test_start_failure_due_to_records_or_ledger_is_not_sent_outside(home, scripted_coordinator):
    for path in (home.sealed, home.ledger):
        path.write_bytes(b"damaged")
    daemon.check_start(home, use_proxy=False)
    (home.path / "settings.json").write_text("damaged")
    catch_refusal(home)
    with pytest.raises(queue.Empty):
        heard(scripted_coordinator, 0.3)


def test_untrusted_coordinator_is_not_told_of_a_start_failure(home, scripted_coordinator):
    policy.change(home, coordinators=())
    assert isinstance(catch_refusal(home, lambda: time.time() - 2 * DAY_S), PrivacyRefusal)
    with pytest.raises(queue.Empty):
        heard(scripted_coordinator, 0.3)


def test_start_failure_stays_local_where_no_coordinator_answers(tmp_path, authority):
    home = PartyHome(joined(tmp_path, authority, address="localhost:1"))
    unsigned(home)
    assert "is not signed" in catch_refusal(home).problem
