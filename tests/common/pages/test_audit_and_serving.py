"""The audit log's chain, and where a page may listen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.pages.serving import Listening
from undersong_common.pages.store import AuditLog


def test_each_entry_holds_the_hash_of_the_one_before(tmp_path):
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


def test_a_page_leaves_this_machine_over_tls_only():
    for host in ("0.0.0.0", "192.0.2.7", "console.example"):
        with raises(ConfigurationError, "page-without-tls"):
            Listening(host, 8700)
    with raises(ConfigurationError, "certificate-without-key"):
        Listening("127.0.0.1", 8700, certificate=Path("c.pem"))
    tls = Listening("0.0.0.0", 443, ("console.example",), Path("c.pem"), Path("k.pem"))
    assert "console.example" in tls.hosts(443)
    assert tls.address(443) == "https://console.example:443"
    assert "127.0.0.1:8700" in Listening("127.0.0.1", 8700).hosts(8700)


def test_who_follows_a_link_before_the_server_runs_waits_and_is_not_refused():
    with Listening("127.0.0.1", 0).open() as listener:
        socket.create_connection(listener.getsockname(), timeout=5).close()
