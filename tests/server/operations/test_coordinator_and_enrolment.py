"""A coordinator and its parties as an operator handles them without a command line."""

from __future__ import annotations

import math
import time
from contextlib import closing

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.coded import raises
from tests.doubles.stream import Credentials
from undersong_common.errors import ConfigurationError
from undersong_common.pages.store import Offer
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Package, new_tls_key, party_fingerprint
from undersong_server.coordinator.home import CoordinatorHome, Serving
from undersong_server.coordinator.parties import ENROLLED, EnrolledParty
from undersong_server.defaults import NewCoordinator
from undersong_server.operations import coordinator, enrolment


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    coordinator.create(path, NewCoordinator(name="clinics", addresses=["example.org:7443", "[::1]:7443"], metrics=""))
    return path


def test_coordinator_is_created_once_and_its_facts_are_shown(home):
    facts = coordinator.show(home)
    assert facts.name == "clinics"
    assert facts.certificate_names == ("example.org", "::1")
    assert not facts.served
    assert facts.addresses == ("example.org:7443", "[::1]:7443")
    with CoordinatorHome(home).hold():
        assert coordinator.show(home).served
    with raises(ConfigurationError, "coordinator-exists"):
        coordinator.create(home, NewCoordinator(name="clinics", addresses=["example.org:7443"]))
    with raises(ConfigurationError, "no-coordinator"):
        coordinator.show(home / "elsewhere")


def test_a_coordinator_listens_at_the_port_of_its_first_address(home, tmp_path):
    assert coordinator.show(home).bind == "0.0.0.0:7443"
    elsewhere = NewCoordinator(addresses=["[::1]:27443", "example.org:7443"], metrics="")
    assert coordinator.create(tmp_path / "elsewhere", elsewhere).bind == "0.0.0.0:27443"
    behind = NewCoordinator(addresses=["example.org:443"], bind="127.0.0.1:7444", metrics="")
    assert coordinator.create(tmp_path / "behind", behind).bind == "127.0.0.1:7444"


def test_changing_the_bind_address_keeps_keys_operator_and_contact(home):
    before = coordinator.change(home, operator="North Hospital", contact="Dr. Holm, 01 234")
    changed = coordinator.change(home, bind="127.0.0.1:27443")
    assert (changed.bind, changed.operator, changed.contact) == (
        "127.0.0.1:27443",
        "North Hospital",
        "Dr. Holm, 01 234",
    )
    assert (changed.fingerprint, changed.addresses) == (before.fingerprint, before.addresses)
    with raises(ConfigurationError, "invalid-address"):
        coordinator.change(home, bind="localhost")
    assert coordinator.show(home).bind == "127.0.0.1:27443"


@pytest.mark.parametrize("contact", ["Mara Holm", "ward 3", "the office, room 12", "mara@north", "north.example"])
def test_every_operation_refuses_a_contact_without_number_or_address(home, tmp_path, contact):
    enrolment.invite(home, "heart", contact="Dr. Who, 555-1")
    before = coordinator.show(home), enrolment.parties(home)
    new = NewCoordinator(addresses=["localhost:27443"], metrics="", operator="North", contact=contact)
    for act in (
        lambda: coordinator.create(tmp_path / "new", new),
        lambda: coordinator.change(home, contact=contact),
        lambda: enrolment.invite(home, "heart", contact=contact),
        lambda: enrolment.note_contact(home, "heart", contact),
    ):
        with raises(ConfigurationError, "contact-unreachable"):
            act()
    assert (coordinator.show(home), enrolment.parties(home)) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "contact",
    [
        *("", "01 234", "ask@north.example", "Dr. Holm, Main Street 12, 10115 Berlin"),
        *("https://north.example/contact", "Ask at www.north.example"),
    ],
)
def test_contact_with_a_number_or_an_address_is_accepted(home, contact):
    assert coordinator.change(home, contact=contact).contact == contact


@pytest.mark.parametrize(("full_name", "code"), [("a\u202eb", "full-name"), ("a" * 201, "too-long")])
def test_invite_and_full_name_refuse_an_unreadable_full_name(home, full_name, code):
    enrolment.invite(home, "lung", full_name="  Lung Clinic,\n Faro ")
    for act in (enrolment.invite, enrolment.note_full_name):
        with raises(ConfigurationError, code):
            act(home, "lung", full_name=full_name)
    enrolment.invite(home, "lung")  # another invitation keeps what was noted
    assert enrolment.full_names(home) == {"lung": "Lung Clinic, Faro"}


@pytest.mark.parametrize("days", [1e8, 1e300, math.inf, math.nan, -1.0])
def test_days_beyond_the_authoritys_lifetime_are_refused(home, days):
    with raises(ConfigurationError, "days-out-of-range"):
        enrolment.invite(home, "heart", days=days)
    assert not enrolment.parties(home)
    package = Package.parse(enrolment.invite(home, "heart").package)
    identity = Ed25519PrivateKey.generate()
    request = EnrolmentRequest.make("heart", new_tls_key(), identity, package.token).sign(identity)
    with raises(ConfigurationError, "days-out-of-range"):
        enrolment.sign(home, request, fingerprint=EnrolmentRequest.parse(request).fingerprint, days=days)
    assert [facts.party.state for facts in enrolment.parties(home)] == ["invited"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"addresses": ["0.0.0.0:7443"]}, "address-of-nobody"),
        ({"addresses": ["[::]:7443"]}, "address-of-nobody"),
        ({"addresses": ["localhost:7443"], "metrics": "localhost"}, "invalid-address"),
        ({"addresses": ["localhost:7443"], "bind": "localhost"}, "invalid-address"),
    ],
)
def test_coordinator_settings_that_cannot_be_served_are_refused(tmp_path, settings, code):
    with raises(ConfigurationError, code):
        coordinator.create(
            tmp_path / "home", NewCoordinator(**{"name": "hub", "bind": "localhost:0", "metrics": "", **settings})
        )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("count", [0, 17])
def test_coordinator_with_more_addresses_than_a_package_holds_is_refused(tmp_path, count):
    with raises(ConfigurationError, "address-count"):
        coordinator.create(
            tmp_path / "other", NewCoordinator(name="clinics", addresses=[f"h{n}.org:7443" for n in range(count)])
        )
    assert not (tmp_path / "other").exists()


def test_health_of_a_coordinator_that_is_not_served_is_an_error(home):
    with raises(ConfigurationError, "not-served"):
        coordinator.health(home)


def test_an_invited_party_is_signed_and_listed_and_can_be_revoked(home):
    invitation = enrolment.invite(home, "heart", days=2)
    package = Package.parse(invitation.package)
    assert invitation.fingerprint == package.fingerprint == coordinator.show(home).fingerprint
    assert repr(package.token) not in repr(invitation)
    keys = Credentials(CoordinatorHome(home), "lung")
    request = EnrolmentRequest.make("heart", keys.tls, keys.identity, package.token).sign(keys.identity)
    own = EnrolmentRequest.parse(request).fingerprint
    with raises(ConfigurationError, "identity-taken"):
        enrolment.sign(home, request, fingerprint=own)
    states = {facts.party.name: facts.party.state for facts in enrolment.parties(home)}
    assert states == {"heart": "invited", "lung": "enrolled"}
    public = keys.identity.public_key().public_bytes_raw()
    assert enrolment.identities(home) == {"lung": public}
    assert [facts.to_json()["fingerprint"] for facts in enrolment.parties(home)] == [
        "",
        party_fingerprint("lung", public),
    ]
    enrolment.revoke(home, "lung", "left")
    assert enrolment.identities(home) == {}
    with raises(ConfigurationError, "nobody-enrolled"):
        enrolment.roster(home, None)


def test_stolen_package_does_not_let_a_thief_enrol_as_the_hospital(home):
    """The attack: the package is read on its way, and a request with the thief's keys arrives first."""
    package = Package.parse(enrolment.invite(home, "heart").package)
    thief, hospital = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    stolen, true = (
        EnrolmentRequest.make("heart", new_tls_key(), identity, package.token).sign(identity)
        for identity in (thief, hospital)
    )
    told = EnrolmentRequest.parse(true).fingerprint  # by telephone
    with raises(ConfigurationError, "fingerprint-not-compared") as refused:
        enrolment.sign(home, stolen)
    assert "--fingerprint" in refused.value.remedy
    for stated in (told, "", told[:-1], "0" * 32):
        with raises(ConfigurationError, "other-fingerprint") as refused:
            enrolment.sign(home, stolen, fingerprint=stated)
        assert EnrolmentRequest.parse(stolen).fingerprint not in str(refused.value)  # nothing to copy
    assert enrolment.sign(home, true, fingerprint=told.upper()).party == "heart"
    with raises(ConfigurationError, "invitation-used"):
        enrolment.sign(home, stolen, fingerprint=EnrolmentRequest.parse(stolen).fingerprint)
    renewal = EnrolmentRequest.make("heart", new_tls_key(), hospital, None).sign(hospital)
    assert enrolment.sign(home, renewal).party == "heart"
    foreign = EnrolmentRequest.make("heart", new_tls_key(), thief, None).sign(thief)
    with raises(ConfigurationError, "not-its-own-renewal"):
        enrolment.sign(home, foreign)


def test_connections_are_listed_only_while_the_serving_process_lives(home):
    opened = CoordinatorHome(home)
    Credentials(opened, "heart")
    Credentials(opened, "lung")
    opened.write_serving(Serving(pid=1, port=7443, metrics_port=None, since=0.0, connected=("lung",)))
    assert not any(facts.connected for facts in enrolment.parties(home))  # left over from a process that ended
    with opened.hold():
        assert [facts.to_json()["connected"] for facts in enrolment.parties(home)] == [False, True]


def test_hospital_that_lost_its_keys_reenrols_with_both_fingerprints(home):
    opened = CoordinatorHome(home)
    old = Credentials(opened, "heart")
    before = party_fingerprint("heart", old.identity.public_key().public_bytes_raw())
    with raises(ConfigurationError, "already-enrolled") as refused:
        enrolment.invite(home, "heart")
    assert "undersong invite heart --again" in refused.value.remedy
    package = Package.parse(enrolment.invite(home, "heart", again=True).package)
    assert [facts.party.state for facts in enrolment.parties(home)] == ["enrolled"]  # until it has come back
    new = Ed25519PrivateKey.generate()
    data = EnrolmentRequest.make("heart", new_tls_key(), new, package.token).sign(new)
    told = EnrolmentRequest.parse(data).fingerprint
    with raises(ConfigurationError, "other-identity") as refused:
        enrolment.sign(home, data, fingerprint=told)
    assert "--replaces" in refused.value.remedy
    with raises(ConfigurationError, "other-fingerprint"):
        enrolment.sign(home, data, fingerprint=told, replaces=party_fingerprint("heart", bytes(32)))
    assert enrolment.sign(home, data, fingerprint=told, replaces=before).kind == "replaced"
    (facts,) = enrolment.parties(home)
    assert facts.fingerprint == party_fingerprint("heart", new.public_key().public_bytes_raw()) != before
    assert facts.to_json()["former_fingerprints"] == [before]
    with closing(opened.registry()) as registry:  # the old certificate lets nobody in any more
        serial = f"{x509.load_pem_x509_certificate(old.certificate).serial_number:x}"
        assert "was revoked" in registry.refusal("heart", serial, now=time.time())
    with raises(ConfigurationError, "invitation-used"):
        enrolment.sign(home, data, fingerprint=told, replaces=facts.fingerprint)
    enrolment.revoke(home, "heart")
    with raises(ConfigurationError, "party-revoked"):
        enrolment.invite(home, "heart", again=True)


def test_lost_keys_cannot_use_the_new_invitation_or_another_name(home):
    opened = CoordinatorHome(home)
    lost = Credentials(opened, "heart")
    before = party_fingerprint("heart", lost.identity.public_key().public_bytes_raw())
    package = Package.parse(enrolment.invite(home, "heart", again=True).package)
    enrolment.sign(home, EnrolmentRequest.make("heart", new_tls_key(), lost.identity, None).sign(lost.identity))
    new = Ed25519PrivateKey.generate()
    data = EnrolmentRequest.make("heart", new_tls_key(), new, package.token).sign(new)
    told = EnrolmentRequest.parse(data).fingerprint
    assert enrolment.sign(home, data, fingerprint=told, replaces=before).kind == "replaced"
    other = Package.parse(enrolment.invite(home, "lung").package)
    data = EnrolmentRequest.make("lung", new_tls_key(), lost.identity, other.token).sign(lost.identity)
    with raises(ConfigurationError, "identity-taken"):
        enrolment.sign(home, data, fingerprint=EnrolmentRequest.parse(data).fingerprint)


@pytest.mark.parametrize(("last_seen", "waits"), [(None, True), (50.0, True), (150.0, False)])
def test_grant_counts_as_not_fetched_until_the_hospital_connects(last_seen, waits):
    never = dict.fromkeys(("revoked_at", "epsilon_left", "certificate_expires_at"))
    words = dict.fromkeys(("identity", "reason", "software", "embedder"), "")
    times = {"invited_at": 10.0, "enrolled_at": 100.0, "last_seen": last_seen}
    party = EnrolledParty("alpha", ENROLLED, paused=False, **never, **words, **times)
    offers = {"alpha.grant": Offer(made_at=100.0, fetched_at=None)}
    file = enrolment.unfetched_file(enrolment.PartyFacts(party, connected=False), offers)
    assert (file is not None) is waits
