"""The in-process transport: parties in the same program, the same bytes, nothing on a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from undersong_client.answering.party import Party


class InProcess:
    """Hands every request to the party of that name, one after the other.

    Args:
        parties: by name.
        reachable: asked before every delivery, by party name and the number of messages it had so far; False loses
            the message (a simulated dropout).
    """

    def __init__(
        self, parties: Mapping[str, Party], *, reachable: Callable[[str, int], bool] = lambda _name, _message: True
    ) -> None:
        self._parties = parties
        self._reachable = reachable
        self._messages = dict.fromkeys(parties, 0)

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        """``timeout_s`` has no meaning here: a party answers at once or not at all."""
        replies = {}
        for name, request in requests.items():
            number = self._messages[name]
            self._messages[name] += 1
            if self._reachable(name, number):
                replies[name] = self._parties[name].handle(request)
        return replies
