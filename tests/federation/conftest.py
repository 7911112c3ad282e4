"""Real processes for the tests of the federation: each ends with its test or with the session, whatever happens."""

from __future__ import annotations

import json
import os

import pytest

from tests.doubles.alliance import Alliance
from tests.doubles.hospitals import HOSPITALS, Federation, clinic_task, some_notes
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.processes import CoordinatorProcess, free_port
from tests.doubles.stream import Credentials, make_home
from undersong_common.models.embedding import Embedder

NOISE_SEED = 7


@pytest.fixture(scope="module")
def federation_process(tmp_path_factory):
    """(port, a party's keys) of `undersong coordinator serve` in a process of its own."""
    folder = tmp_path_factory.mktemp("served")
    port = free_port()
    home = make_home(folder / "home", bind=f"127.0.0.1:{port}", addresses=(f"localhost:{port}",))
    keys = Credentials(home, "heart")
    with CoordinatorProcess(folder / "home", port):
        yield port, keys


@pytest.fixture(scope="session")
def clinic(tmp_path_factory):
    """The clinic's five hospitals, a dozen notes each, enrolled and connected; shared by the tests of a session.

    The first one's own process embeds its notes; four more would take 20 s of a core to load the same model.
    """
    folder = tmp_path_factory.mktemp("clinic")
    before = dict(os.environ)
    os.environ.update(XDG_STATE_HOME=str(folder / "state"), UNDERSONG_CACHE=str(folder / "cache"), HF_HUB_OFFLINE="1")
    try:
        with Federation(folder, some_notes(folder / "notes", 12), noise_seed=NOISE_SEED, approval="each") as found:
            found.set_up(embedded=HOSPITALS[1:])
            found.task = clinic_task(folder)
            yield found
    finally:
        for key in ("XDG_STATE_HOME", "UNDERSONG_CACHE", "HF_HUB_OFFLINE"):
            os.environ.pop(key, None)
        os.environ.update({key: value for key, value in before.items() if key not in os.environ})


@pytest.fixture(scope="module")
def alliance_folder(tmp_path_factory):
    """A folder for hospitals in this process, with the heads of their ledgers, and embeddings that need no weights."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("alliance")
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())
        yield folder


@pytest.fixture(scope="module")
def alliance(alliance_folder):
    """Four hospitals and their coordinator in this process."""
    with Alliance(alliance_folder) as made:
        yield made


@pytest.fixture(scope="session")
def unattended(clinic):
    """The same federation, whose hospitals approve by their standing policy."""
    for each in clinic.hospitals.values():
        if json.loads(each("policy", "show", "--json")).get("approval") != "standing":
            each("policy", "set", "--approval", "standing")
    return clinic
