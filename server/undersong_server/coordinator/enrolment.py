"""Enrolment at the coordinator: invitations, certificate grants, renewals and revocations."""

from __future__ import annotations

import os
import time
from contextlib import closing

from undersong_common.errors import ConfigurationError
from undersong_protocol.enrolment import TOKEN_BYTES, EnrolmentRequest, Grant, Package, check_party_name
from undersong_server import defaults
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import ENROLLED


def invite(
    home: CoordinatorHome,
    name: str,
    *,
    now: float,
    days: float = defaults.INVITATION_DAYS,
    again: bool = False,
    contact: str = "",
) -> Package:
    """A new invitation; ``sign`` it with the authority's signing key.

    Args:
        again: of a party that is enrolled and has lost its keys.
        contact: whom to telephone there; "" keeps what was noted.

    Raises ConfigurationError for a name that is invalid, revoked, or enrolled without ``again``.
    """
    authority = home.authority()
    expires = int(now + days * 86400)
    token = os.urandom(TOKEN_BYTES)
    with closing(home.registry()) as registry:
        registry.invite(check_party_name(name), token, expires_at=expires, now=now, again=again, contact=contact)
    return Package(
        coordinator=home.settings.name,
        addresses=home.settings.addresses,
        server_name=home.settings.server_names[0],
        ca_certificate=authority.certificate_pem.decode("ascii"),
        signing_key=authority.signing_public,
        party=name,
        token=token,
        expires_s=expires,
    )


def sign(
    home: CoordinatorHome,
    request: EnrolmentRequest,
    *,
    now: float,
    days: float | None = None,
    shown: str | None = None,
    replaces: bytes | None = None,
) -> bytes:
    """The grant's bytes for a request that holds its invitation's token, or for a renewal by the same identity.

    Args:
        days: of the certificate's life; None for the usual ones.
        shown: serial number (hex) of the certificate over whose stream a renewal came; None where the operator signs.
        replaces: the identity key, 32 bytes, that the party had until now; None where no key may be replaced.

    Raises ConfigurationError that says what does not fit.
    """
    with closing(home.registry()) as registry:
        if request.renewal:
            known = registry.party(request.party)
            if known.state != ENROLLED or known.identity != request.identity.hex():
                raise ConfigurationError(
                    f"{request.party}: only the enrolled party itself renews its certificate",
                    f"if its identity key was lost: undersong invite {request.party} --again",
                )
        else:
            request.check_token(registry.token(request.party, now=now))
        authority = home.authority()
        lifetime = {} if days is None else {"days": days}
        issued = authority.issue_party(request.party, request.tls_key(), now=now, **lifetime)
        registry.enrol(
            request.party,
            request.identity,
            issued,
            now=now,
            shown=shown,
            replaces=replaces,
            renewal=request.renewal,
        )
        if replaces is not None:
            authority.write_revocations(registry.revoked_serials(), now=now)
    grant = Grant(
        coordinator=home.settings.name,
        party=request.party,
        identity=request.identity,
        certificate=issued.pem.decode("ascii"),
        chain=(authority.certificate_pem.decode("ascii"),),
    )
    return grant.sign(authority.signing_key)


def renew(home: CoordinatorHome, name: str, serial: str, request: bytes) -> bytes:
    """The grant for a renewal that arrived over the stream of the party ``name``.

    Args:
        serial: hex, of the certificate that the stream shows.

    Raises ConfigurationError that says what does not fit: another party's request, too early, or too often.
    """
    now = time.time()
    with closing(home.registry()) as registry:
        registry.check_renewal(name, serial, now=now)
    parsed = EnrolmentRequest.parse(request)
    if parsed.party != name or not parsed.renewal:
        raise ConfigurationError("a stream renews the certificate of its own party only")
    return sign(home, parsed, now=now, shown=serial)


def revoke(home: CoordinatorHome, name: str, reason: str, *, now: float) -> None:
    """Shuts a party out for good; a serving process ends its stream within seconds."""
    with closing(home.registry()) as registry:
        registry.revoke(name, reason, now=now)
        home.authority().write_revocations(registry.revoked_serials(), now=now)
