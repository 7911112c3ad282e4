"""Checks before the daemon starts, and the few reasons for not starting that the coordinator may learn.

Such a reason is one code of ``DoesNotStart``. It depends on settings, policy, certificate and clock alone, and is
sent before any record, ledger or model is opened. Every other reason is shown to this party's own people only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from undersong_client import keys
from undersong_client.consent import enrolment, policy
from undersong_client.home import PartyHome, WrittenByAnotherVersion
from undersong_client.link.connection import Connection
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import TransportError, UndersongError
from undersong_common.version import SOFTWARE
from undersong_protocol.wire import framing
from undersong_protocol.wire.framing import ID_BYTES, Envelope, Reassembler
from undersong_protocol.wire.messages import transport_pb2 as wire

log = logging.getLogger(__name__)

TELL_S = 10.0  # for each address of the coordinator


def check(home: PartyHome, *, clock: Callable[[], float] = time.time, use_proxy: bool = True) -> None:
    """Looks at settings, policy, certificate and clock, and tells the coordinator of what stands in the way.

    Args:
        clock: seconds since the epoch.
        use_proxy: dials through the environment's proxy.

    Raises:
        ConfigurationError, PrivacyRefusal, TransportError: what stands in the way, with its remedy.
    """
    enrolment.coordinator(home)
    enrolment.validity(home)
    try:
        _ = home.settings
    except WrittenByAnotherVersion as refusal:
        _refuse(home, wire.DoesNotStart.VERSION, refusal, clock, use_proxy)
    try:
        policy.read(home)
    except WrittenByAnotherVersion as refusal:
        _refuse(home, wire.DoesNotStart.VERSION, refusal, clock, use_proxy)
    except UndersongError as refusal:
        _refuse(home, wire.DoesNotStart.POLICY, refusal, clock, use_proxy)
    enrolment.trusted(home)  # nothing is told to a coordinator that the policy does not trust
    try:
        enrolment.check_clock(home, clock())
    except TransportError as refusal:
        # It arrives only where the coordinator accepts the certificate, and then it is this machine's clock.
        _refuse(home, wire.DoesNotStart.CLOCK, refusal, clock, use_proxy)


def _refuse(
    home: PartyHome, reason: wire.DoesNotStart, refusal: UndersongError, clock: Callable[[], float], use_proxy: bool
) -> NoReturn:
    try:
        _tell(home, reason, clock, use_proxy=use_proxy)
    except UndersongError as error:
        log.warning("the coordinator was not told that this daemon does not start: %s", error.problem)
    raise refusal


def _tell(home: PartyHome, reason: wire.DoesNotStart, clock: Callable[[], float], *, use_proxy: bool) -> None:
    """One Hello to the first address that answers, and nothing after it. Raises TransportError where none does."""
    coordinator, name = enrolment.coordinator(home), enrolment.certified_name(home)
    hello = wire.Hello(
        version=framing.VERSION, party=name, software=SOFTWARE, boot=os.urandom(ID_BYTES), does_not_start=reason
    )
    outbox = Outbox(home)
    failed = TransportError("no address of the coordinator is known")
    for address in coordinator.addresses:
        said = f"to {address}: party {name}, {SOFTWARE}, does not start: {wire.DoesNotStart.Name(reason).lower()}"
        outbox.record(said.encode(), at=clock(), kind="hello", answer_to="the daemon does not start")
        connection = Connection(
            address,
            coordinator,
            keys.credential(home),
            hello=hello,
            reassembler=Reassembler("coordinator"),
            listener=_Deaf(),
            use_proxy=use_proxy,
        )
        try:
            connection.wait_welcome(partial(_is_over, time.monotonic() + TELL_S))
        except TransportError as error:
            failed = error
        else:
            log.info("the coordinator was told why this daemon does not start: %s", wire.DoesNotStart.Name(reason))
            return
        finally:
            connection.close("the daemon does not start")
    raise failed


def _is_over(until: float) -> bool:
    return time.monotonic() > until


class _Deaf:
    """Takes nothing of what a coordinator sends."""

    def wants(self, id_: bytes) -> bool:
        return False

    def request(self, envelope: Envelope) -> None: ...

    def acknowledged(self, id_: bytes) -> None: ...

    def renewed(self, message: wire.Renewed) -> None: ...
