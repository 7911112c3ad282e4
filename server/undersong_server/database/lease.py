"""The lease of a serving process: who serves renews it, and who loses it ends."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from undersong_common.errors import UndersongError
from undersong_server.database.interface import Database, Superseded

log = logging.getLogger(__name__)

RENEW_S = 1.0  # pause between two renewals
LOST_S = 15.0  # A holder ends after so long without the database, so that its parties connect to its successor.
LAST_RENEWAL_S = 10.0  # longest wait for a renewal that is under way when the process ends


class Lease:
    """Renews the lease of a serving process, in a thread.

    Args:
        lost: called once, from the thread, when another process has the lease or the database stays away.
    """

    def __init__(self, database: Database, epoch: int, lost: Callable[[], None]) -> None:
        self._database = database
        self.epoch = epoch
        self._lost = lost
        self._stopping = threading.Event()
        self.lost_by: UndersongError | None = None
        self._thread = threading.Thread(target=self._renew_lease, name="lease", daemon=True)
        if database.remote:
            self._thread.start()

    def _renew_lease(self) -> None:
        renewed_at_s, failure_count = time.monotonic(), 0
        while not self._stopping.wait(RENEW_S):
            begun_at_s = time.monotonic()
            try:
                if self._database.renew(self.epoch):
                    failure_count = 0
                    renewed_at_s = begun_at_s
                    continue
                self.lost_by = Superseded(self.epoch)
            except UndersongError as error:
                log.warning("the lease was not renewed: %s", error.problem)
                failure_count += 1
                # The first failure may tell only that the connection ended while this process was stopped.
                if failure_count == 1 or time.monotonic() - renewed_at_s < LOST_S:
                    continue
                self.lost_by = error
            self._lost()
            return

    def end(self) -> None:
        """Gives the lease back, so that another process need not wait."""
        self._stopping.set()
        if self._database.remote:
            self._thread.join(LAST_RENEWAL_S)
            for _ in range(2):  # The first try may only find that its connection had ended.
                with suppress(UndersongError):
                    self._database.renew(self.epoch, 0.0)
                    break
        self._database.close()
