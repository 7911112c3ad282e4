"""A coordinator has moved: a hospital that reaches no old address gets the new ones with a renewed certificate."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from tests.doubles.alliance import Hospital
from tests.doubles.hospitals import Operated, enrol
from undersong_client.consent import trust
from undersong_client.home import PartyHome
from undersong_protocol.agreement.enrolment import EnrolmentRequest
from undersong_server.coordinator.home import CoordinatorHome

pytestmark = pytest.mark.heavy

HALF_A_YEAR_S = 200 * 86400.0  # until a stream may renew


@pytest.fixture
def operated(tmp_path):
    operated = Operated(tmp_path)
    operated.found()
    return operated


@pytest.fixture
def hospital(operated):
    hospital = Hospital("alpha", operated.folder, offset_s=0.0)
    enrol(operated.folder, operated.operator, hospital, operated.fingerprint)
    return hospital


def renewed(operated, hospital):
    request, grant = operated.folder / "renewal.request", operated.folder / "renewal.grant"
    hospital("enroll", "--renew", "--request-out", request)
    operated.operator("sign", request, "--out", grant)
    return hospital("enroll", "--grant", grant)


def test_certificate_renewal_by_file_brings_coordinator_s_new_addresses(operated, hospital):
    CoordinatorHome(operated.home).change(addresses=("moved.example.org:7443", "[::1]:7443"))
    words = "the coordinator is reached at moved.example.org:7443, [::1]:7443 from now on"
    assert words in renewed(operated, hospital)
    coordinator = trust.trusted(PartyHome(hospital.home))
    assert coordinator.addresses == ("moved.example.org:7443", "[::1]:7443")
    assert coordinator.server_name == "moved.example.org"
    assert words not in renewed(operated, hospital)


def test_certificate_grant_without_addresses_keeps_those_that_a_party_has(operated, hospital):
    party = PartyHome(hospital.home)
    before, home = trust.coordinator(party), CoordinatorHome(operated.home)
    home.change(addresses=("moved.example.org:7443",))
    with closing(home.registry()) as registry:
        ((serial,),) = registry.database.rows("SELECT serial FROM certificate")
    request = EnrolmentRequest.parse(trust.request(party, None))
    trust.install(party, home.sign(request, now=time.time() + HALF_A_YEAR_S, stream_serial=serial))
    assert trust.coordinator(party) == before
