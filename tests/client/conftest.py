"""Every test has its own state folder: marks of one test's data sets must not meet another's."""

import pytest

from tests.doubles.authority import Authority


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("UNDERSONG_PARTY_HOME", raising=False)
    for name in ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


@pytest.fixture(scope="module")
def authority():
    return Authority()
