"""An Ed25519 identity of low order is everybody's: it is refused when it is enrolled, listed, or verified with."""

import dataclasses
import hashlib
import json
import math

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.doubles.authority import Authority
from tests.doubles.coded import raises
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PeerFault, PrivacyRefusal
from undersong_protocol.agreement import enrolment, receipt
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Package
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.keys import check_identity, verified
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram

FIELD = 2**255 - 19
GROUP = 2**252 + 27742317777372353535851937790883648493
ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
CANONICAL = (0, 1, FIELD - 1, ORDER_8, FIELD - ORDER_8)
NOT_CANONICAL = (FIELD, FIELD + 1)
ENCODINGS = [
    (y | sign << 255).to_bytes(32, "little") for y in (*CANONICAL, *NOT_CANONICAL) for sign in (0, 1)
]  # fmt: skip
EVERY = pytest.mark.parametrize("key", ENCODINGS, ids=lambda key: key.hex()[:8] + key.hex()[-2:])
NEUTRAL = (1).to_bytes(32, "little")


def multiply(point: tuple[int, int], times: int) -> tuple[int, int]:
    """On the curve -x^2 + y^2 = 1 + d x^2 y^2, by repeated addition."""
    d = -121665 * pow(121666, -1, FIELD) % FIELD
    x, y = 0, 1
    for _ in range(times):
        product = d * x * y * point[0] * point[1] % FIELD
        x, y = (
            (x * point[1] + y * point[0]) * pow(1 + product, -1, FIELD) % FIELD,
            (y * point[1] + x * point[0]) * pow(1 - product, -1, FIELD) % FIELD,
        )
    return x, y


def root(square: int) -> int:
    found = pow(square, (FIELD + 3) // 8, FIELD)
    return found if found * found % FIELD == square % FIELD else found * pow(2, (FIELD - 1) // 4, FIELD) % FIELD


def forged() -> bytes:
    """Verifies under the neutral element, whatever was signed: R = s B, and the key adds nothing to it."""
    scalar = bytearray(hashlib.sha512(bytes(32)).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    return Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw() + (
        int.from_bytes(scalar, "little") % GROUP
    ).to_bytes(32, "little")


@pytest.mark.parametrize("y", CANONICAL)
def test_eightfold_of_each_listed_low_order_point_is_neutral(y: int) -> None:
    d = -121665 * pow(121666, -1, FIELD) % FIELD
    x = root((y * y - 1) * pow(d * y * y + 1, -1, FIELD) % FIELD)
    assert (-x * x + y * y - 1 - d * x * x * y * y) % FIELD == 0
    assert multiply((x, y), 8) == (0, 1)


def test_forged_low_order_signature_is_refused_here_and_not_by_the_library() -> None:
    for statement in (b"approve", b"another thing"):
        Ed25519PublicKey.from_public_bytes(NEUTRAL).verify(forged(), statement)
        with pytest.raises(ValueError, match="order"):
            verified(NEUTRAL, statement, forged())


@EVERY
def test_no_signature_is_verified_under_a_key_of_low_order(key: bytes) -> None:
    with pytest.raises(ValueError, match="order"):
        check_identity(key)
    with pytest.raises((ValueError, InvalidSignature)):
        verified(key, b"approve", forged())


def test_ordinary_identity_keys_are_accepted() -> None:
    for _ in range(20):
        key = Ed25519PrivateKey.generate()
        verified(key.public_key().public_bytes_raw(), b"approve", key.sign(b"approve"))


@EVERY
def test_request_or_package_with_a_weak_key_is_refused_though_it_verifies(key: bytes) -> None:
    tls_key, identity = enrolment.new_tls_key(), Ed25519PrivateKey.generate()
    request = EnrolmentRequest.make("alpha", tls_key, identity, bytes(32)).sign(identity)
    with raises(ConfigurationError, "low-order-key"):
        EnrolmentRequest.parse(with_key(enrolment.REQUEST, request, identity=key))
    package = Authority().package_bytes("alpha")
    with raises(ConfigurationError, "low-order-key"):
        Package.parse(with_key(enrolment.PACKAGE, package, signing_key=key))


def with_key(kind: str, data: bytes, **changes: bytes) -> bytes:
    body = json.loads(data)["body"] | {name: key.hex() for name, key in changes.items()}
    return canonical_json({"kind": kind, "version": enrolment.VERSION, "body": body, "signature": forged().hex()})


def make_manifest(identity: bytes) -> Manifest:
    roster = (Member("alpha", Ed25519PrivateKey.generate().public_key().public_bytes_raw()), Member("beta", identity))
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(math.inf, 1e-5), Quorum(2, 2, 0, 0))
    return Manifest("run", {"name": "task", "labels": ["a", "b"]}, "wasp", "00" * 32, roster, plan)


@EVERY
def test_roster_with_a_low_order_identity_is_refused_by_name(key: bytes) -> None:
    with pytest.raises(PrivacyRefusal, match="beta"):
        make_manifest(key).verify()


def test_no_signed_manifest_or_receipt_counts_under_a_weak_identity() -> None:
    own = Ed25519PrivateKey.generate()
    agreed = make_manifest(NEUTRAL)
    agreed = dataclasses.replace(
        agreed, roster=(Member("alpha", own.public_key().public_bytes_raw()), agreed.roster[1])
    )
    with pytest.raises(PeerFault, match="beta"):
        agreed.check_signatures({"alpha": agreed.sign(own), "beta": forged()})
    body = receipt.body(agreed, "beta", [])
    Ed25519PublicKey.from_public_bytes(NEUTRAL).verify(forged(), tagged_hash(receipt.TAG, body))
    with raises(PeerFault, "not-signed"):
        receipt.check_receipt(agreed, "beta", body, forged())
