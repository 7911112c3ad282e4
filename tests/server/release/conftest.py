"""One published run for all tests of releases, and a coordinator that signs it."""

from __future__ import annotations

import pytest

from tests.doubles.parties import public_of
from tests.doubles.published import PARTIES, federated
from tests.doubles.stream import make_home
from undersong_server.release.files import Signer


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """``manifest.json`` as a value, and the plan; tests change copies."""
    return federated(tmp_path_factory.mktemp("run"), 3.0)


@pytest.fixture(scope="session")
def signer(tmp_path_factory):
    authority = make_home(tmp_path_factory.mktemp("coordinator") / "home").authority()
    return Signer("clinics", authority, {name: public_of(name) for name in PARTIES})
