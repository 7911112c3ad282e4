"""Runs the tests in several processes that share one collection: ``pytest --processes 3``.

One process imports and collects the tests, and the others are forked from it. Collecting takes ten seconds of a
processor, which as many processes as there are cores would each spend. A worker takes the tests of one file after the
other in the order of the collection; it sends their reports to the process that collected, which shows them.
"""

import atexit
import io
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest


class Upcoming:
    """A worker's next test, which the worker asks for only when it tears the last one down.

    Asked for earlier, a file would wait behind a long test while another worker has nothing to do.
    """

    def __init__(self, find_next: Callable[[], pytest.Item | None]) -> None:
        self._find_next = find_next

    def listchain(self) -> list[Any]:
        item = self._find_next()
        return item.listchain() if item else []


class ReportSender:
    """Sends a worker's reports and warnings to the process that shows them."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        place = (warning_message.filename, warning_message.lineno)
        self._connection.send(("warning", (text, place, when, nodeid, location)))


def run_worker(session: pytest.Session, number: int, connection: Connection) -> None:
    """Runs tests in a forked process until there are no more."""
    config = session.config
    manager: Any = config.pluginmanager
    reporter = manager.get_plugin("terminalreporter")
    reporter._tw._file = io.StringIO()
    manager.get_plugin("capturemanager").start_global_capturing()
    manager.register(ReportSender(config, connection))
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir(mode=0o700, exist_ok=True)

    waiting: deque[int] = deque()

    def find_next() -> pytest.Item | None:
        if not waiting:
            connection.send(("more", None))
            waiting.extend(connection.recv())
        return session.items[waiting[0]] if waiting else None

    while item := find_next():
        waiting.popleft()
        config.hook.pytest_runtest_protocol(item=item, nextitem=Upcoming(find_next))
    atexit._run_exitfuncs()  # as when a process ends by itself: libraries stop what they have started


class Worker:
    """A forked process, and the tests that it has been told to run and has not finished."""

    def __init__(self, session: pytest.Session, number: int) -> None:
        self.number = number
        self.unfinished: deque[int] = deque()
        self.connection, child = Pipe()
        capture: Any = session.config.pluginmanager.get_plugin("capturemanager")
        capture.stop_global_capturing()  # two processes would write to one place of one file
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            ended = False
            try:
                self.connection.close()
                run_worker(session, number, child)
                ended = True
            finally:  # the process never returns to what called the collecting one
                child.send(("end", None if ended else traceback.format_exc()))
                os._exit(0)
        capture.start_global_capturing()
        child.close()

    def end(self) -> str:
        """Waits for the process, and returns how it ended."""
        self.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return f"signal {-status}" if status < 0 else f"exit code {status}"


class Pool:
    """Gives groups of tests, by their places in the session, to workers, and shows what they report."""

    def __init__(self, session: pytest.Session, groups: Iterable[Sequence[int]]) -> None:
        self._session = session
        self._config = session.config
        self._groups = deque(groups)
        self._workers: dict[Connection, Worker] = {}
        self._started = 0

    def run(self, count: int) -> None:
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # each worker has a folder in it
        try:
            for _ in range(min(count, len(self._groups))):
                self._start_worker()
            while self._workers:
                for connection in wait(list(self._workers)):
                    self._take_message(self._workers[connection])  # type: ignore[index]
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGTERM)
                worker.end()

    def _start_worker(self) -> None:
        worker = Worker(self._session, self._started)
        self._started += 1
        self._workers[worker.connection] = worker

    def _take_message(self, worker: Worker) -> None:
        try:
            kind, content = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            kind, content = "end", None
        if kind == "end":
            del self._workers[worker.connection]
            self._close_worker(worker, content)
        elif kind == "more":
            stopped = self._session.shouldfail or self._session.shouldstop
            group = self._groups.popleft() if self._groups and not stopped else ()
            worker.unfinished.extend(group)
            worker.connection.send(group)
        elif kind == "report":
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=content)
            self._show_report(worker, report)
        elif kind == "warning":
            text, (filename, line), when, nodeid, location = content
            message = warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, filename, line)
            values = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=values)

    def _show_report(self, worker: Worker, report: pytest.TestReport) -> None:
        item = self._session.items[worker.unfinished[0]]
        if report.when == "setup":
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            worker.unfinished.popleft()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _close_worker(self, worker: Worker, problem: str | None) -> None:
        ending = worker.end()
        if worker.unfinished:  # the first of them was running
            item = self._session.items[worker.unfinished.popleft()]
            reason = f"its process ended: {problem or ending}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
            item.ihook.pytest_runtest_logreport(report=report)
        if worker.unfinished:
            self._groups.appendleft(tuple(worker.unfinished))
        if self._groups:
            self._start_worker()
