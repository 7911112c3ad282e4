"""The in-process transport as one whose messages carry several requests, as Flower's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undersong.simulation import InProcess


class InProcessBatches(InProcess):
    """Hands every message's requests to the party of that name."""

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        """Several requests a message, answered in order; the message is lost whole or not at all."""
        replies = {}
        for name, batch in requests.items():
            number = self._messages[name]
            self._messages[name] += 1
            if self._reachable(name, number):
                replies[name] = [self._parties[name].handle(request) for request in batch]
        return replies
