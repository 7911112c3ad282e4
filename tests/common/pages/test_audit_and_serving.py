"""The audit log's chain, an earlier version's file of a page, and where a page may listen."""

import re
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.doubles.coded import raises
from tests.doubles.served_page import ServedPage
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.pages.serving import Listening
from undersong_common.pages.site import PageSettings, Site
from undersong_common.pages.store import PAGE_FILE, AuditLog, PageStore

# Columns of an earlier version's tables.
EARLIER = {
    "account": "name TEXT PRIMARY KEY, role TEXT NOT NULL, password TEXT NOT NULL DEFAULT '', created_at REAL NOT NULL",
    "link": "secret TEXT PRIMARY KEY, account TEXT NOT NULL, expires_at REAL NOT NULL",
    "session": "secret TEXT PRIMARY KEY, number INTEGER NOT NULL, account TEXT NOT NULL, csrf TEXT NOT NULL,"
    " created_at REAL NOT NULL, seen_at REAL NOT NULL, address TEXT NOT NULL, message TEXT NOT NULL DEFAULT ''",
    "act": "actor TEXT, at REAL",
}


def test_each_audit_entry_holds_the_hash_of_the_one_before(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    assert log.entries() == []
    for number in range(5):
        log.note("ada", "run start", f"spring {number}")
    assert [entry.about for entry in log.entries()] == [f"spring {number}" for number in range(5)]
    lines = log.path.read_text().splitlines()
    for changed in (
        [lines[0].replace("spring 0", "spring 9"), *lines[1:]],
        [*lines[:2], *lines[3:]],
        [lines[1], lines[0], *lines[2:]],
    ):
        log.path.write_text("\n".join(changed) + "\n")
        with pytest.raises(PrivacyRefusal) as refused:
            log.entries()
        assert refused.value.code == "broken-chain"


def test_page_is_served_to_other_machines_only_over_tls():
    for host in ("0.0.0.0", "192.0.2.7", "console.example"):
        with raises(ConfigurationError, "page-without-tls"):
            Listening(host, 8700)
    with raises(ConfigurationError, "certificate-without-key"):
        Listening("127.0.0.1", 8700, certificate=Path("c.pem"))
    tls = Listening("0.0.0.0", 443, ("console.example",), Path("c.pem"), Path("k.pem"))
    assert "console.example" in tls.hosts(443)
    assert tls.address(443) == "https://console.example"
    assert "127.0.0.1:8700" in Listening("127.0.0.1", 8700).hosts(8700)
    # As a tunnel of ssh asks for it, from another port of the officer's machine.
    assert "127.0.0.1:9700" in Listening("127.0.0.1", 8700, ("127.0.0.1:9700",)).hosts(8700)


def test_a_page_behind_a_proxy_answers_the_named_hosts_only():
    behind = Listening("127.0.0.1", 8700, ("console.example",), proxy="127.0.0.1")
    assert behind.tls
    assert set(behind.hosts(8700)) == {"console.example", "console.example:443"}
    assert behind.address(8700) == "https://console.example"
    assert set(Listening("127.0.0.1", 1, ("a.example:8443",), proxy="::1").hosts(1)) == {"a.example:8443"}
    for names, proxy in (((), "127.0.0.1"), (("console.example",), "proxy.example"), (("console.example",), "*")):
        with raises(ConfigurationError, "proxy-or-name"):
            Listening("127.0.0.1", 8700, names, proxy=proxy)
    with raises(ConfigurationError, "page-without-tls"):  # beyond this machine the way to the proxy is encrypted too
        Listening("192.0.2.7", 8700, ("console.example",), proxy="192.0.2.1")


@pytest.mark.heavy
@pytest.mark.parametrize(("proxy", "source"), [("127.0.0.1", "192.0.2.7"), ("127.0.0.9", "127.0.0.1")])
def test_only_the_named_proxy_may_state_the_client_address(proxy, source, tmp_path):
    listening = Listening("127.0.0.1", 0, ("console.example",), proxy=proxy)

    def build(hosts, port):
        return Site(PageSettings("Test", hosts, port, listening.tls, tmp_path, (), ()))

    forwarded = {"Host": "console.example", "X-Forwarded-For": "203.0.113.9, 192.0.2.7"}
    with ServedPage(build, listening) as served, httpx.Client(base_url=f"http://127.0.0.1:{served.port}") as client:
        assert client.get("/login").status_code == 421
        form = client.get("/enter", headers=forwarded)
        assert "strict-transport-security" in form.headers
        assert re.search(r"__Host-\S+; HttpOnly; Path=/; SameSite=strict; Secure", form.headers["set-cookie"])
        cookie = {"Cookie": form.headers["set-cookie"].partition(";")[0]}
        code = served.link().partition("#")[2]
        fields = {"csrf": re.search(r'name="csrf" value="([^"]*)"', form.text)[1], "code": code}
        assert client.post("/enter", data=fields, headers=forwarded | cookie).status_code == 303
        assert [session.address for session in served.site.accounts.sessions()] == [source]


def test_a_page_under_a_path_of_a_shared_host_is_refused_in_words():
    with raises(ConfigurationError, "page-under-a-path"):
        Listening("127.0.0.1", 8700, ("hospital.example/undersong",))


def test_connection_before_the_server_runs_waits_and_is_not_refused():
    with Listening("127.0.0.1", 0).open() as listener:
        socket.create_connection(listener.getsockname(), timeout=5).close()


def test_processes_that_open_an_earlier_versions_file_at_once_all_succeed(tmp_path):
    """Each of them saw the same columns missing, and only one could add them."""
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with closing(sqlite3.connect(folder / PAGE_FILE)) as old:
            old.execute("PRAGMA journal_mode=WAL")
            for table, columns in EARLIER.items():
                old.execute(f"CREATE TABLE {table} ({columns})")
        together = threading.Barrier(6)

        def opened(folder=folder, together=together):
            together.wait()
            with closing(PageStore(folder)) as store:
                return {table: len(store.rows(f"PRAGMA table_info({table})")) for table in EARLIER}

        with ThreadPoolExecutor(6) as threads:
            numbers = [opening.result() for opening in [threads.submit(opened) for _ in range(6)]]
        assert numbers == [{"account": 9, "link": 4, "session": 12, "act": 4}] * 6
