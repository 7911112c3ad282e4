"""The register states of each party what was noted of it, each fact under its own name."""

from contextlib import closing
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.coded import raises
from tests.doubles.stream import Credentials, make_home
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Grant, new_tls_key, party_fingerprint
from undersong_server.coordinator.parties import ENROLLED, REVOKED


def test_registry_returns_each_fact_of_a_party_in_its_own_field(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    credentials = Credentials(home, "alpha", now=2_000_000_000.0, days=2.0)
    with closing(home.registry()) as registry:
        registry.note_contact("alpha", "Mara, 01 23")
        assert registry.full_names() == {}  # no table yet, as in a registry that an earlier program made
        registry.note_full_name("alpha", "Alpha Clinic, Faro")
        registry.note_full_name("alpha", "Alpha Hospital, Porto")
        seen: dict[str, Any] = {
            "software": "undersong 9",
            "embedder": "ee",
            "epsilon_left": 2.5,
            "paused": True,
            "policy": "{}",
        }
        registry.seen("alpha", now=2_000_000_007.0, **seen)
        registry.refused_start("alpha", "policy")
        party = registry.party("alpha")
        assert {name: getattr(party, name) for name in seen} == seen
        assert (party.contact, party.does_not_start) == ("Mara, 01 23", "policy")
        assert party.full_name == "Alpha Hospital, Porto"
        registry.note_full_name("alpha", "")
        assert registry.full_names() == {}
        with raises(ConfigurationError, "unknown-party"):
            registry.note_full_name("nobody", "Nobody, Nowhere")
        assert (party.state, party.identity) == (ENROLLED, credentials.identity.public_key().public_bytes_raw().hex())
        assert (party.last_seen, party.revoked_at, party.reason) == (2_000_000_007.0, None, "")
        assert party.certificate_expires_at == 2_000_000_000.0 + 2 * 86400.0
        registry.revoke("alpha", "its key was lost", now=2_000_000_009.0)
        revoked = registry.party("alpha")
    assert (revoked.state, revoked.revoked_at, revoked.reason) == (REVOKED, 2_000_000_009.0, "its key was lost")
    assert revoked.certificate_expires_at is None


def test_registry_keeps_the_times_of_invitation_and_enrolment(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.invite("alpha", now=1_000.0)
    with closing(home.registry()) as registry:
        invited = registry.party("alpha")
    assert (invited.invited_at, invited.enrolled_at, invited.last_seen) == (1_000.0, None, None)
    Credentials(home, "beta", now=2_000.0)
    with closing(home.registry()) as registry:
        registry.seen("beta", now=3_000.0, software="", embedder="", epsilon_left=None, paused=False)
        enrolled = registry.party("beta")
    assert (enrolled.invited_at, enrolled.enrolled_at, enrolled.last_seen) == (2_000.0, 2_000.0, 3_000.0)


def test_package_and_grant_state_the_coordinator_s_own_facts(tmp_path: Path) -> None:
    addresses = ("one.example:7443", "two.example:7444")
    home = make_home(tmp_path / "home", name="clinics", addresses=addresses)
    authority = home.authority()
    package = home.invite("alpha", now=2_000_000_000.0, days=3.0)
    assert (package.coordinator, package.party, package.addresses) == ("clinics", "alpha", addresses)
    assert (package.server_name, package.signing_key) == (home.settings.server_names[0], authority.signing_public)
    assert package.ca_certificate == authority.certificate_pem.decode()
    assert package.expires_s == 2_000_000_000 + 3 * 86400
    identity = Ed25519PrivateKey.generate()
    grants = []
    for token in (package.token, None):  # the enrolment, then a renewal by file
        request = EnrolmentRequest.parse(EnrolmentRequest.make("alpha", new_tls_key(), identity, token).sign(identity))
        signed = home.sign(request, now=2_000_000_001.0)
        grants.append(Grant.parse(signed, signing_key=package.signing_key, ca_certificate=package.ca_certificate))
    public_key = identity.public_key().public_bytes_raw()
    assert all((grant.coordinator, grant.party, grant.identity) == ("clinics", "alpha", public_key) for grant in grants)
    assert [grant.addresses for grant in grants] == [(), addresses]
    assert [grant.server_name for grant in grants] == ["", home.settings.server_names[0]]


def test_party_key_is_replaced_when_its_former_fingerprint_is_stated(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    former = Credentials(home, "alpha", now=2_000_000_000.0).identity.public_key().public_bytes_raw()
    package = home.invite("alpha", now=2_000_000_001.0, again=True)
    identity = Ed25519PrivateKey.generate()
    made = EnrolmentRequest.make("alpha", new_tls_key(), identity, package.token)
    request = EnrolmentRequest.parse(made.sign(identity))
    with raises(ConfigurationError, "other-identity"):
        home.sign(request, now=2_000_000_002.0)
    home.sign(request, now=2_000_000_002.0, replaces=party_fingerprint("alpha", former))
    with closing(home.registry()) as registry:
        party = registry.party("alpha")
    assert party.identity == identity.public_key().public_bytes_raw().hex()
    assert party.former_identities == (former.hex(),)
