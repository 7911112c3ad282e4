"""The three files that make a hospital a party: each opens only as what it is, for whom it is, unchanged."""

import json
import os
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.doubles.authority import Authority, name
from tests.doubles.coded import raises
from tests.doubles.pace import examples
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement import enrolment
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Grant, Package, new_tls_key, same_fingerprint


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def party_keys():
    return new_tls_key(), Ed25519PrivateKey.generate()


def resigned(data: bytes, key: Ed25519PrivateKey, **changes) -> bytes:
    """The same file with other values, honestly signed by ``key``."""
    value = json.loads(data)
    body = {**value["body"], **changes}
    body = {field: item for field, item in body.items() if item is not None}
    signature = key.sign(tagged_hash(value["kind"], canonical_json(body))).hex()
    return canonical_json({**value, "body": body, "signature": signature})


def test_hospital_enrols_by_package_request_and_grant(authority: Authority, party_keys) -> None:
    tls_key, identity = party_keys
    package = Package.parse(authority.package_bytes("alpha", "undersong.org:7443", "[::1]:7443"))
    assert package.addresses == ("undersong.org:7443", "[::1]:7443")
    package.check_fresh(0.0)
    request = EnrolmentRequest.parse(EnrolmentRequest.make("alpha", tls_key, identity, package.token).sign(identity))
    request.check_token(package.token)
    grant = Grant.parse(
        authority.grant(request), signing_key=package.signing_key, ca_certificate=package.ca_certificate
    )
    grant.check_mine("alpha", tls_key.public_key(), identity.public_key().public_bytes_raw())
    assert enrolment.common_name(enrolment.certificate(grant.certificate, "it")) == "alpha"


def test_fingerprint_is_read_as_people_type_it(authority: Authority) -> None:
    package = authority.package("alpha")
    shown = package.fingerprint
    assert len(shown.split("-")) == 8
    assert same_fingerprint(shown.upper().replace("-", " "), shown)
    assert not same_fingerprint(shown[:-1] + ("0" if shown[-1] != "0" else "1"), shown)
    assert not same_fingerprint("", shown)
    assert not same_fingerprint("ü", shown)
    assert authority.package("beta").fingerprint == shown  # of the coordinator, not of the party
    assert Authority().package("alpha").fingerprint != shown


def test_expired_invitation_is_refused_saying_so(authority: Authority) -> None:
    package = Package.parse(authority.package_bytes("alpha", expires_s=1000))
    with raises(ConfigurationError, "expired"):
        package.check_fresh(1000.0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "changes",
    [
        {"party": "Alpha"},
        {"party": "a" * 64},
        {"party": "../x"},
        {"party": 7},
        {"addresses": []},
        {"addresses": ["nowhere"]},
        {"addresses": ["host:0"]},
        {"addresses": ["host:70000"]},
        {"addresses": ["a b:7"]},
        {"addresses": ["h:1"] * 17},
        {"addresses": "host:1"},
        {"server_name": "a\nb"},
        {"ca_certificate": "no certificate"},
        {"token": "00"},
        {"token": "zz" * 32},
        {"signing_key": "00" * 31},
        {"expires_s": -1},
        {"expires_s": True},
        {"expires_s": 1e300},
        {"expires_s": None},
        {"extra": 1},
    ],
)
def test_a_package_with_a_wrong_value_is_refused_though_it_is_signed(authority: Authority, changes) -> None:
    data = resigned(authority.package_bytes("alpha"), authority.signing, **changes)
    with pytest.raises(ConfigurationError):
        Package.parse(data)


def test_enrolment_package_changed_after_signing_is_refused(authority: Authority) -> None:
    data = authority.package_bytes("alpha", "good.org:7443")
    with raises(ConfigurationError, "not-signed"):
        Package.parse(data.replace(b"good.org", b"evil.org"))
    other = Authority()
    swapped = resigned(data, other.signing, ca_certificate=other.pem)
    with raises(ConfigurationError, "not-signed"):
        Package.parse(swapped)
    with raises(ConfigurationError, "other-key"):
        authority.package("alpha").sign(other.signing)


def test_enrolment_file_is_not_taken_for_one_of_another_kind(authority: Authority, party_keys) -> None:
    tls_key, identity = party_keys
    package = authority.package_bytes("alpha")
    request = EnrolmentRequest.make("alpha", tls_key, identity, bytes(32)).sign(identity)
    with raises(ConfigurationError, "other-file"):
        EnrolmentRequest.parse(package)
    with raises(ConfigurationError, "other-file"):
        Package.parse(request)
    with raises(ConfigurationError, "other-file"):
        Grant.parse(package, signing_key=bytes(32), ca_certificate=authority.pem)


def test_a_request_without_the_token_is_refused(authority: Authority, party_keys) -> None:
    tls_key, identity = party_keys
    token = os.urandom(32)
    request = EnrolmentRequest.parse(EnrolmentRequest.make("alpha", tls_key, identity, token).sign(identity))
    with raises(ConfigurationError, "no-token"):
        request.check_token(os.urandom(32))
    # a proof is of one request: it cannot be moved to another key
    moved = request.model_copy(update={"identity": Ed25519PrivateKey.generate().public_key().public_bytes_raw()})
    with raises(ConfigurationError, "no-token"):
        moved.check_token(token)
    renewal = EnrolmentRequest.parse(EnrolmentRequest.make("alpha", tls_key, identity, None).sign(identity))
    with raises(ConfigurationError, "no-token"):
        renewal.check_token(token)


def request_with(key, *subjects: str) -> str:
    subject = x509.Name([attribute for text in subjects or ("alpha",) for attribute in name(text)])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return built.public_bytes(Encoding.PEM).decode()


def test_a_request_for_another_key_type_or_subject_is_refused(party_keys) -> None:
    tls_key, identity = party_keys
    data = EnrolmentRequest.make("alpha", tls_key, identity, bytes(32)).sign(identity)
    wrong = {
        "P-256": request_with(ec.generate_private_key(ec.SECP384R1())),
        "another subject": request_with(tls_key, "beta"),
        "cannot be read": "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
    }
    for words, certificate_request in wrong.items():
        with pytest.raises(ConfigurationError, match=words):
            EnrolmentRequest.parse(resigned(data, identity, certificate_request=certificate_request))
    with raises(ConfigurationError, "not-signed"):
        EnrolmentRequest.parse(resigned(data, Ed25519PrivateKey.generate()))


@pytest.mark.parametrize("subjects", [("alpha", "beta"), ("beta", "alpha"), ("alpha", "alpha")])
def test_certificate_request_that_names_two_subjects_is_refused(party_keys, subjects: tuple[str, ...]) -> None:
    tls_key, identity = party_keys
    data = EnrolmentRequest.make("alpha", tls_key, identity, bytes(32)).sign(identity)
    with pytest.raises(ConfigurationError, match="another subject"):
        EnrolmentRequest.parse(resigned(data, identity, certificate_request=request_with(tls_key, *subjects)))


def test_a_certificate_request_whose_own_signature_is_broken_is_refused(party_keys) -> None:
    tls_key, identity = party_keys
    data = EnrolmentRequest.make("alpha", tls_key, identity, bytes(32)).sign(identity)
    der = bytearray(x509.load_pem_x509_csr(request_with(tls_key).encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    import base64

    body = base64.encodebytes(bytes(der)).decode()
    forged = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"
    with pytest.raises(ConfigurationError, match="certificate request"):
        EnrolmentRequest.parse(resigned(data, identity, certificate_request=forged))


def test_a_grant_of_another_authority_or_for_other_keys_is_refused(authority: Authority, party_keys) -> None:
    tls_key, identity = party_keys
    request = EnrolmentRequest.make("alpha", tls_key, identity, None)
    trusted: dict[str, Any] = {"signing_key": authority.package("alpha").signing_key, "ca_certificate": authority.pem}
    foreign = Authority()
    with raises(ConfigurationError, "not-signed"):
        Grant.parse(foreign.grant(request), **trusted)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"certificate": foreign.leaf("alpha", tls_key.public_key())}, "is not signed by the next one"),
        ({"certificate": authority.leaf("beta", tls_key.public_key())}, "another subject"),
        ({"chain": []}, "does not lead"),
        ({"chain": [foreign.pem]}, "does not lead"),
        ({"chain": [foreign.pem, authority.pem]}, "is not signed by the next one"),
        ({"chain": [authority.pem] * 5}, "damaged"),
        ({"certificate": "junk"}, "cannot be read"),
    ]
    for changes, words in wrong:
        data = resigned(authority.grant(request), authority.signing, **changes)
        with pytest.raises(ConfigurationError, match=words):
            Grant.parse(data, **trusted)
    good = Grant.parse(authority.grant(request), **trusted)
    public = identity.public_key().public_bytes_raw()
    for mine in [
        ("beta", tls_key.public_key(), public),
        ("alpha", new_tls_key().public_key(), public),
        ("alpha", tls_key.public_key(), bytes(32)),
    ]:
        with raises(ConfigurationError, "other-request"):
            good.check_mine(*mine)


READERS = [
    Package.parse,
    EnrolmentRequest.parse,
    lambda data: Grant.parse(data, signing_key=bytes(32), ca_certificate="x"),
]


@settings(max_examples=examples(60, 300), deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from([enrolment.PACKAGE, enrolment.REQUEST, enrolment.GRANT]),
                "version": st.sampled_from([1, 2, "1"]),
                "body": st.dictionaries(st.sampled_from(["party", "chain", "token", "renewal"]), st.text(max_size=9)),
                "signature": st.sampled_from(["", "00" * 64, 7]),
            }
        ).map(lambda value: json.dumps(value).encode()),
    )
)
@pytest.mark.heavy
def test_hostile_enrolment_files_raise_only_a_configuration_error(data: bytes) -> None:
    for read in READERS:
        with pytest.raises(ConfigurationError):
            read(data)


def test_deeply_nested_and_long_enrolment_files_are_refused() -> None:
    for read in READERS:
        for data in (b"[" * 200_000, b" " * 300_000, b'{"a":' * 50_000):
            with pytest.raises(ConfigurationError):
                read(data)


def test_enrolment_package_written_as_a_list_is_refused(authority: Authority) -> None:
    value = json.loads(authority.package_bytes("alpha"))
    with pytest.raises(ConfigurationError, match="damaged"):
        Package.parse(json.dumps(list(value.items())).encode())


def test_repr_and_errors_of_a_package_show_no_token(authority: Authority) -> None:
    package = authority.package("alpha")
    assert package.token.hex() not in repr(package)
    assert str(package.token) not in repr(package)
    with pytest.raises(ValidationError) as refused:
        Package(**{**dict(package), "token": package.token[:20]})
    assert repr(package.token)[2:12] not in str(refused.value)
