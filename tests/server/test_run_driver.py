"""What an operator reads while a run waits."""

from __future__ import annotations

import time

import pytest

from server.authority import Authority
from server.grpc_transport import Presence, Waiting
from server.imprint import Signer
from server.journal import Journal
from server.metrics import Metrics
from server.run_driver import RunDriver
from server.run_folder import RunFolder


@pytest.fixture
def driver(tmp_path):
    from server.grpc_transport import GrpcTransport

    (tmp_path / "run").mkdir()
    made = RunDriver(
        RunFolder(tmp_path / "run"),
        GrpcTransport(Metrics()),
        expelled=lambda: [],
        public_cache=tmp_path / "cache.sqlite",
        environment={},
        number=1,
        signer=Signer("clinics", Authority.create(tmp_path / "authority", "clinics", ["localhost"], now=time.time())),
    )
    made._needed = 3
    made._journal = Journal(tmp_path / "journal.sqlite")
    yield made
    made._journal.close()


def words(driver, answered):
    missing = {"beta": Presence(True, 0.0, 0.0)}
    driver.waits(Waiting(missing, answered, 5.0), 4)
    return driver._status["waiting"]["words"], driver._status["waiting"]["goes_on_with"]


def test_before_everybody_has_signed_nobody_is_left_out(driver):
    said, needed = words(driver, 3)
    assert "3 of 4 have answered, all must; in 5 s they are asked again" in said
    assert needed == 4


def test_afterwards_the_quorum_says_when_the_run_goes_on(driver):
    driver._journal.put_json("manifest/signatures", {})
    assert words(driver, 3) == (
        "waiting for beta (connected, at work); 3 of 4 have answered, the quorum is 3; in 5 s it goes on without them",
        3,
    )
    assert "it goes on only if 1 more answer by then" in words(driver, 2)[0]
