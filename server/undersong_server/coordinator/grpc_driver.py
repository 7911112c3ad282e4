"""A run over the native transport, in a thread of the serving process; its status says for whom it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.plurals import counted
from undersong_server.coordinator.grpc_transport import GrpcTransport, Presence, Waiting
from undersong_server.coordinator.run_driver import RunDriver
from undersong_server.federation.transport import Transport
from undersong_server.journal import Journal
from undersong_server.release.signature import Signer
from undersong_server.runs.folder import RunFolder
from undersong_server.runs.planned import Planned
from undersong_server.runs.status import Awaited, AwaitedParty

ROSTER_POLL_S = 0.5


class GrpcRunDriver(RunDriver):
    """One run that is under way.

    Args:
        transport: of the whole coordinator.
        expelled: names of parties that were revoked; called again and again.
        public_cache, environment, number, signer: see :class:`RunDriver`.
    """

    def __init__(
        self,
        folder: RunFolder,
        transport: GrpcTransport,
        *,
        expelled: Callable[[], Sequence[str]],
        public_cache: Path,
        environment: Mapping[str, str],
        number: int,
        signer: Signer,
    ) -> None:
        super().__init__(folder, public_cache=public_cache, environment=environment, number=number, signer=signer)
        self._transport = transport
        self._expelled = expelled
        self._journal: Journal | None = None
        self._thread = threading.Thread(target=self.run, name=f"run {folder.name}", daemon=True)

    def start(self) -> None:
        self._note(durable=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def carrier(self, planned: Planned) -> Transport:
        return _PatientTransport(self, self._transport, planned, self._needed, self._reply_bytes)

    def sleep(self, seconds: float) -> None:
        self._transport.sleep(seconds)

    def await_roster(self, planned: Planned, journal: Journal) -> None:
        """Blocks until every party is connected; once the manifest is signed, until enough of them are."""
        begun = time.time()
        self._journal = journal
        needed = self._needed if self._signed else len(planned.roster)
        while True:
            self.check()
            presence = self._transport.presence(planned.roster)
            connected = [name for name, seen in presence.items() if seen.connected]
            gone = sorted(set(planned.roster) & set(self._expelled()))
            if len(planned.roster) - len(gone) < needed:
                raise ConfigurationError(
                    f"{', '.join(gone)}: revoked, and the run needs {needed} of its {len(planned.roster)} parties",
                    "plan a new run without them",
                )
            if len(connected) >= needed:
                self._status = replace(self._status, waiting=None)
                return
            missing = {name: seen for name, seen in presence.items() if not seen.connected}
            awaited = Awaited(
                parties=_described(missing),
                since=begun,
                goes_on_at=None,
                goes_on_with=needed,
                words=f"waiting for {_names(missing)} to connect; the run goes on as soon as {needed} of"
                f" {counted(len(planned.roster), 'party is', 'parties are')} there ({len(connected)} now)",
            )
            self._status = replace(self._status, state="waiting", waiting=awaited)
            self._note()
            time.sleep(ROSTER_POLL_S)

    @property
    def _signed(self) -> bool:
        """Whether everybody has signed the manifest: before that a run needs every party."""
        return self._journal is not None and self._journal.get("manifest/signatures") is not None

    def waits(self, waiting: Waiting, asked: int) -> None:
        """Tells in the status that a request is under way and replies are missing."""
        self.check()
        if self.awaits_people and all(seen.connected for seen in waiting.missing.values()):
            return  # a machine that is asked anew each second whether its people have decided
        signed = self._signed
        needed = self._needed if signed else asked
        late = f"{waiting.answered} of {asked} have answered, {f'the quorum is {needed}' if signed else 'all must'}"
        if not signed:
            outcome = f"in {waiting.left_s:.0f} s they are asked again"
        elif waiting.answered >= needed:
            outcome = f"in {waiting.left_s:.0f} s it goes on without them"
        else:
            outcome = f"in {waiting.left_s:.0f} s it goes on only if {needed - waiting.answered} more answer by then"
        before = self._status.waiting
        awaited = Awaited(
            parties=_described(waiting.missing),
            since=time.time() if before is None else before.since,
            goes_on_at=time.time() + waiting.left_s,
            goes_on_with=needed,
            words=f"waiting for {_names(waiting.missing)}; {late}; {outcome}",
        )
        self._status = replace(self._status, waiting=awaited)
        self._note()

    def described(self, parties: Sequence[str]) -> tuple[AwaitedParty, ...]:
        return _described(self._transport.presence(parties))

    def answered(self) -> None:
        """Tells in the status that the request is over."""
        if self._status.waiting is not None and not self.awaits_people:
            self._status = replace(self._status, waiting=None)
            self._note()


class _PatientTransport:
    """The transport as one run uses it: it checks for the operator's request, and spends its patience once per party.

    A party that was away for a whole request is not waited for again until it has been connected, as long as the others
    are enough for the run.
    """

    def __init__(
        self, driver: GrpcRunDriver, transport: GrpcTransport, planned: Planned, needed: int, reply_bytes: int
    ) -> None:
        self._driver = driver
        self._transport = transport
        self._roster = planned.roster
        self._patience_s = planned.patience_s
        self._needed = needed
        self._reply_bytes = reply_bytes
        self._gone: dict[str, float] = {}  # since when a party that was waited for in vain has been away

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        self._driver.check()

        def watch(waiting: Waiting) -> bool:
            self._driver.waits(waiting, len(requests))
            return self._given_up >= set(waiting.missing)

        begun = time.monotonic()
        replies = self._transport.exchange(requests, timeout_s=timeout_s, watch=watch, reply_bytes=self._reply_bytes)
        if time.monotonic() - begun >= self._patience_s:
            missing = self._transport.presence([name for name in requests if name not in replies])
            self._gone.update({name: seen.since for name, seen in missing.items() if not seen.connected})
        self._driver.answered()
        return replies

    @property
    def _given_up(self) -> set[str]:
        """The parties that are not waited for; empty where the run cannot go on without them."""
        now = self._transport.presence(self._gone)
        away = {name for name, since in self._gone.items() if not now[name].connected and now[name].since == since}
        return away if len(self._roster) - len(away) >= self._needed else set()


def _described(missing: Mapping[str, Presence]) -> tuple[AwaitedParty, ...]:
    now = time.monotonic()
    return tuple(
        AwaitedParty(name, seen.connected, round(now - seen.since, 1) if seen.heard is not None else None)
        for name, seen in sorted(missing.items())
    )


def _names(missing: Mapping[str, Presence]) -> str:
    now = time.monotonic()
    words = []
    for name, seen in sorted(missing.items()):
        if seen.connected:
            words.append(f"{name} (connected, at work)")
        elif seen.heard is None:
            words.append(f"{name} (not connected since the coordinator started)")
        else:
            words.append(f"{name} (away for {now - seen.since:.0f} s)")
    return ", ".join(words)
