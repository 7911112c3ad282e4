"""The suites that play the protocol, with both kinds of masks: hybrid with ML-KEM-768, and (slow) X25519 alone."""

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey

from tests.doubles.secagg import MaskKind
from undersong_protocol.secagg import keys

KINDS = [pytest.param(False, marks=pytest.mark.slow, id="classical"), pytest.param(True, id="post-quantum")]


@pytest.fixture(scope="module", params=KINDS)
def both_kinds_of_masks(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether ``parameters_of`` plans post-quantum masks; for ``pytestmark = pytest.mark.usefixtures(...)``."""
    before, MaskKind.post_quantum = MaskKind.post_quantum, request.param
    yield request.param
    MaskKind.post_quantum = before


@pytest.fixture(scope="session", autouse=True)
def computed_once() -> Iterator[None]:
    """Keeps what the library computes of equal keys: the secrets of the parties are the same in every test."""

    class PublicKey:
        def __init__(self, key: bytes) -> None:
            self.encapsulate = cache(MLKEM768PublicKey.from_public_bytes(key).encapsulate)

    decapsulate: Any = cache(lambda secret, ciphertext: secret.decapsulate(ciphertext))
    shared: Any = cache(keys.Agreement.shared)
    kept = {
        "Agreement": cache(keys.Agreement),
        "MLKEM768PrivateKey": SimpleNamespace(from_seed_bytes=cache(MLKEM768PrivateKey.from_seed_bytes)),
        "MLKEM768PublicKey": SimpleNamespace(from_public_bytes=cache(PublicKey)),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keys.Agreement, "shared", lambda self, party, key: shared(self, party, key))
        patched.setattr(keys.KemSecretKey, "decapsulate", lambda self, text: decapsulate(self._secret, text))
        for name, value in kept.items():
            patched.setattr(keys, name, value)
        yield
