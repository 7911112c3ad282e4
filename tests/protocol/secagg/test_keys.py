"""Derived keys are those of the library."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from undersong_protocol.secagg import keys


@pytest.mark.parametrize("salt", [b"", bytes(range(32)), bytes(range(200))])
def test_keys_are_derived_as_the_library_derives_them(salt: bytes) -> None:
    secret, infos = bytes(range(96)), (b"", b"mask" + bytes(40))
    expected = [HKDF(SHA256(), length=32, salt=salt or None, info=info).derive(secret) for info in infos]
    assert [keys.hkdf(salt, secret, info) for info in infos] == expected
