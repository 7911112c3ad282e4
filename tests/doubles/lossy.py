"""Transports that lose messages: a party that drops out, or a line that breaks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from undersong.run.simulation import InProcess
from undersong_client.answering.party import Party
from undersong_server.federation.exchange import Lazily

Reachable = Callable[[str, int], bool]
"""Asked before every delivery, by party name and the number of messages it had so far; False loses the message."""


class LossyParties(InProcess):
    """Parties in this process, to whom not every message comes."""

    def __init__(
        self,
        parties: Mapping[str, Party],
        reachable: Reachable = lambda _name, _message: True,
        together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(parties, together)
        self._reachable = reachable
        self._messages = dict.fromkeys(parties, 0)

    @property
    def messages(self) -> int:
        """Messages sent so far."""
        return sum(self._messages.values())

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        with self._joint_write():
            return {name: self._parties[name].handle(given) for name, given in requests.items() if self._arrives(name)}

    def _arrives(self, name: str) -> bool:
        number = self._messages[name]
        self._messages[name] += 1
        return self._reachable(name, number)


class LossyBatches(LossyParties):
    """The same with messages that carry several requests, as Flower's do; a message is lost whole or not at all."""

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        with self._joint_write():
            return {
                name: [self._parties[name].handle(request) for request in requests[name]]
                for name in requests
                if self._arrives(name)
            }


class Lossy:
    """Another transport, from which a message that ``reachable`` denies is lost before it is made."""

    def __init__(self, transport: Any, reachable: Reachable) -> None:
        self._transport = transport
        self._reachable = reachable
        self._messages: dict[str, int] = {}

    @property
    def messages(self) -> int:
        """Messages of the other transport."""
        return int(self._transport.messages)

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Any:
        return self._transport.exchange(self._arriving(requests), timeout_s=timeout_s)

    def exchange_batches(self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float) -> Any:
        return self._transport.exchange_batches(self._arriving(requests), timeout_s=timeout_s)

    def _arriving(self, requests: Mapping[str, Any]) -> Mapping[str, Any]:
        arriving = []
        for name in requests:
            number = self._messages.get(name, 0)
            self._messages[name] = number + 1
            if self._reachable(name, number):
                arriving.append(name)
        return Lazily(dict.fromkeys(arriving), requests.__getitem__)
