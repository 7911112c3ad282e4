"""A coordinator's folder moves to the service's account and back, and not while it is served."""

import os

import pytest

from tests.doubles.coded import raises
from tests.doubles.machines import ACCOUNT, MachineInFolder
from undersong_common.errors import ConfigurationError
from undersong_common.program import services as machinery
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import NewCoordinator
from undersong_server.operations import coordinator, services

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(os.geteuid() != 0, reason="accounts and units are root's")]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(machinery, "check_environment", lambda program: None)
    source = tmp_path / "coordinator"
    made = coordinator.create(
        source, NewCoordinator(name="fed", addresses=["localhost:7443"], bind="127.0.0.1:0", metrics="")
    )
    machine = MachineInFolder(tmp_path / "root")
    machine.accounts["undersong"] = machinery.Owner(0, 0)  # root, for whom pytest's folder can be passed
    return source, machine, made.fingerprint


def test_service_install_moves_the_coordinator_and_removal_moves_it_back(place):
    source, machine, fingerprint = place
    record = services.installation(source, machine).install()
    target = machine.path(services.HOME)
    assert record.moved_from == str(source)
    assert not source.exists()
    assert CoordinatorHome(target).authority().fingerprint == fingerprint
    assert "systemctl enable --now undersong-coordinator.service undersong-console.service" in machine.calls
    services.installation(None, machine).remove()
    assert not target.exists()
    assert CoordinatorHome(source).authority().fingerprint == fingerprint


def test_coordinator_that_is_being_served_cannot_be_moved(place):
    source, machine, _ = place
    with CoordinatorHome(source).hold(), raises(ConfigurationError, "coordinator-in-use"):
        services.installation(source, machine).install()
    assert (source / "coordinator.json").exists()


def test_error_after_an_interrupted_move_says_how_to_continue(place):
    source, _, _ = place
    (source / "coordinator.json").rename(source / "moving.json")
    with raises(ConfigurationError, "moving"):
        CoordinatorHome(source)


def test_service_removal_without_an_installation_is_refused(place):
    _, machine, _ = place
    with raises(ConfigurationError, "not-installed"):
        services.installation(None, machine).remove()


def test_service_install_creates_a_missing_account(place):
    _, machine, _ = place
    machine.accounts.clear()
    services.installation(None, machine).install()
    assert machine.accounts == {"undersong": ACCOUNT}
    assert machine.path(services.FOLDER).lstat().st_uid == ACCOUNT.uid
    assert not any("enable" in call for call in machine.calls)
