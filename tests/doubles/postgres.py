"""A real PostgreSQL server of Debian's packages on a socket of its own, and a line to it that can be cut."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

PORT = 54329  # of the socket's name; nothing listens on the network


def _short_folder() -> Path:
    """A folder in memory where there is room for one; its path is short, as a socket's must be."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="pg-", dir=memory if memory.is_dir() else "/tmp"))


class PostgresServer:
    """A server in a folder of its own; ends with its context. Skips the test where Debian's packages are missing."""

    def __init__(self) -> None:
        self._binaries = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
        if self._binaries is None:
            pytest.skip("needs PostgreSQL of Debian's packages")
        self._databases = 0

    def __enter__(self) -> "PostgresServer":
        assert self._binaries is not None
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        # PostgreSQL refuses to run as root.
        account: dict[str, Any] = {"user": pwd.getpwnam("postgres").pw_uid} if os.geteuid() == 0 else {}
        if account:
            os.chown(self.folder, account["user"], -1)
        self._quiet: dict[str, Any] = {"check": True, "capture_output": True, "cwd": "/", **account}
        self._run("initdb", "-D", self.folder / "data", "-U", "reader", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -p {PORT} -c max_connections=200 -c fsync=off"
        self._run("pg_ctl", "-D", self.folder / "data", "-o", options, "-l", self.folder / "log", "-w", "start")

    def stop(self) -> None:
        """Ends it at once, as a machine that loses its power; :meth:`start` recovers what was committed."""
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")

    def replica(self) -> Path:
        """A copy of all that was committed until now, which hears of nothing that comes later."""
        copy = self.folder / "replica"
        self.stop()
        subprocess.run(["cp", "-a", self.folder / "data", copy], check=True)
        self.start()
        return copy

    def fail_over(self, copy: Path) -> None:
        """The server dies, and its copy is promoted in its place."""
        self.stop()
        shutil.rmtree(self.folder / "data")
        copy.rename(self.folder / "data")
        (self.folder / "data" / "standby.signal").touch()
        self.start()
        self._run("pg_ctl", "-D", self.folder / "data", "-w", "promote")

    def run_sql(self, text: str, database: str = "postgres") -> str:
        place = ("-h", self.folder, "-p", str(PORT), "-U", "reader", "-v", "ON_ERROR_STOP=1", "-At", database)
        return self._run("psql", *place, input=text.encode()).stdout.decode()

    def database(self) -> str:
        """The connection string of a fresh database."""
        self._databases += 1
        name = f"made{self._databases}"
        self.run_sql(f"CREATE DATABASE {name}")
        return f"host={self.folder} port={PORT} user=reader dbname={name}"

    def _run(self, program: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[bytes]:
        assert self._binaries is not None
        return subprocess.run([self._binaries / program, *map(str, arguments)], **self._quiet, **more)


class Line:
    """A socket before the server's. A connection is cut, unanswered, where it carries the text ``cut``: once.

    The server reads the text unless ``forwarded`` is False.
    """

    def __init__(self, server: PostgresServer, target: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pgl-", dir="/tmp"))
        self.target = target.replace(str(server.folder), str(self.folder))
        self._server = str(server.folder / f".s.PGSQL.{PORT}")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / f".s.PGSQL.{PORT}"))
        self._listener.listen(16)
        self.cut: bytes | None = None
        self.forwarded = True
        self.cuts = 0
        self.flows = threading.Event()  # while it is not set, both ends stay connected and hear nothing
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.flows.set()
        self._listener.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server)
                except OSError:  # the server is down
                    client.close()
                    continue
                ends = threading.Event()
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._carry, args=(*pair, ends), daemon=True).start()

    def _cuts(self, data: bytes) -> bool:
        if self.cut is None or self.cut not in data:
            return False
        self.cut = None
        self.cuts += 1
        return True

    def _carry(self, source: socket.socket, target: socket.socket, asks: bool, ends: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and self.flows.wait() and not ends.is_set():
                if asks and self._cuts(data):
                    ends.set()
                    if self.forwarded:
                        target.sendall(data)
                    break
                if ends.is_set():
                    break
                target.sendall(data)
        if ends.is_set() and asks:
            source.shutdown(socket.SHUT_RDWR)  # the client hears nothing more; the server goes on with what it has
            threading.Timer(0.3, target.shutdown, [socket.SHUT_RDWR]).start()
        elif not ends.is_set():
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
