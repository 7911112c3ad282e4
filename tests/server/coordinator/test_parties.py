"""The register states of each party what was noted of it, each fact under its own name."""

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.doubles.stream import Credentials, make_home
from undersong_server.coordinator.parties import ENROLLED, REVOKED


def test_each_fact_of_a_party_stands_under_its_name(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    credentials = Credentials(home, "alpha", now=2_000_000_000.0, days=2.0)
    with closing(home.registry()) as registry:
        registry.note_contact("alpha", "Mara, 01 23")
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
        assert (party.state, party.identity) == (ENROLLED, credentials.identity.public_key().public_bytes_raw().hex())
        assert (party.last_seen, party.revoked_at, party.reason) == (2_000_000_007.0, None, "")
        assert party.certificate_expires_at == 2_000_000_000.0 + 2 * 86400.0
        registry.revoke("alpha", "its key was lost", now=2_000_000_009.0)
        revoked = registry.party("alpha")
    assert (revoked.state, revoked.revoked_at, revoked.reason) == (REVOKED, 2_000_000_009.0, "its key was lost")


def test_a_party_was_invited_before_it_enrolled(tmp_path: Path) -> None:
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
