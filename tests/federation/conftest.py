"""Real processes for the tests of the federation: each ends with its test, whatever happens."""

from __future__ import annotations

import pytest

from tests.doubles.processes import CoordinatorProcess, free_port
from tests.doubles.stream import Credentials, make_home


@pytest.fixture(scope="module")
def federation_process(tmp_path_factory):
    """(port, a party's keys) of `undersong coordinator serve` in a process of its own."""
    folder = tmp_path_factory.mktemp("served")
    port = free_port()
    home = make_home(folder / "home", bind=f"127.0.0.1:{port}", addresses=(f"localhost:{port}",))
    keys = Credentials(home, "heart")
    with CoordinatorProcess(folder / "home", port):
        yield port, keys
