"""A connection to Ray, by a stand-in for it: what is sent once, what a lost worker's value is, and errors by name."""

from __future__ import annotations

import os
import stat
import sys
from types import SimpleNamespace

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.cluster import AUTHENTICATION, FOLDER, SETTINGS, SINGLE_THREAD, Cluster, connected


class Lost(Exception):
    pass


class StandIn:
    """Ray as far as a connection uses it; references are numbers of values."""

    def __init__(self):
        self.resources = {"CPU": 3.0, "memory": 1.0}
        self.exceptions = SimpleNamespace(
            WorkerCrashedError=Lost, OutOfMemoryError=Lost, NodeDiedError=Lost, ObjectLostError=Lost
        )
        self.kept, self.begun, self.cancelled, self.ended = [], [], [], 0

    def is_initialized(self):
        return bool(self.begun) and not self.ended

    def init(self, **arguments):
        if arguments["address"] == "auto":
            raise RuntimeError("no cluster was found")
        self.begun.append(arguments)

    def put(self, value):
        self.kept.append(value)
        return len(self.kept) - 1

    def remote(self, **options):
        self.options = options
        return lambda function: SimpleNamespace(
            remote=lambda *references: ("call", function, tuple(self.kept[each] for each in references))
        )

    def wait(self, waiting, num_returns):
        return waiting[-1:], waiting[:-1]

    def get(self, call):
        _, function, arguments = call
        if arguments[0] == "lost":
            raise Lost
        return function(*arguments)

    def cancel(self, call):
        self.cancelled.append(call[2])

    def cluster_resources(self):
        return self.resources

    def shutdown(self):
        self.ended += 1


@pytest.fixture
def ray(monkeypatch):
    found = StandIn()
    monkeypatch.setitem(sys.modules, "ray", found)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(AUTHENTICATION, ("token", "of this test"), strict=True):
        monkeypatch.setenv(name, value)
    return found


def joined(*words: str) -> str:
    return " ".join(words)


def test_cluster_results_carry_call_numbers_and_shared_arguments_go_once(ray):
    table = "a large table"
    with Cluster("local", 2) as cluster:
        found = dict(cluster.each(joined, [("lost", table), ("one", table), ("two", table)]))
        assert cluster.cores == 3
    assert {1: "one a large table", 2: "two a large table"}.items() <= found.items()
    assert isinstance(found[0], UndersongError)
    assert ray.kept.count(table) == 1
    assert ray.options == {"num_cpus": 1, "max_retries": 1}
    assert ray.begun == [
        {
            "address": "local",
            "num_cpus": 2,
            "include_dashboard": False,
            "log_to_driver": False,
            "runtime_env": {"env_vars": SINGLE_THREAD},
        }
    ]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ray.ended == 1


@pytest.mark.parametrize(("gpus", "there", "asked"), [(2, 4.0, True), (2, 0.0, False), (0, 4.0, False)])
def test_cluster_call_requests_gpus_if_there_are_any_and_reuses_its_worker(ray, gpus, there, asked):
    ray.resources = {"CPU": 3.0, "GPU": there}
    with Cluster("local", 2) as cluster:
        assert dict(cluster.each(joined, [("one",)], gpus=gpus)) == {0: "one"}
    more = {"num_gpus": 2, "max_calls": 0} if asked else {}
    assert ray.options == {"num_cpus": 1, "max_retries": 1, **more}


def test_unreachable_cluster_address_is_refused_before_ray_starts(ray):
    with (
        Cluster("ray://127.0.0.1:1") as cluster,
        raises(ConfigurationError, "ray-unreachable") as refused,
    ):
        list(cluster.each(joined, [("one",)]))
    assert refused.value.problem.startswith("--ray ray://127.0.0.1:1: ")
    assert not ray.begun


def test_closing_the_iterator_cancels_the_remaining_cluster_calls(ray):
    with Cluster("") as cluster:
        values = cluster.each(joined, [("one",), ("two",)])
        next(values)
        values.close()
    assert ray.cancelled == [("one",)]


def test_cluster_without_calls_does_not_start_ray(ray):
    with connected(None) as none, connected("local") as cluster:
        assert none is None
        assert list(cluster.each(joined, [])) == []
    assert not ray.begun


def test_local_ray_gets_a_fresh_token_and_a_private_folder(monkeypatch):
    mode, token = AUTHENTICATION
    """The attack: Ray's sockets lay in a folder in which every user of the machine could put others of that name."""
    for name in (*AUTHENTICATION, FOLDER):
        monkeypatch.setenv(name, "")
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails, after the token is drawn
    drawn = set()
    for _ in range(2):
        with raises(ConfigurationError, "ray-missing") as missing:
            _ = Cluster("local").cores
        assert "undersong[ray]" in missing.value.remedy
        assert os.environ[mode] == "token"
        assert len(os.environ[token]) == 64
        drawn.add(os.environ.pop(token))
        assert stat.S_IMODE(os.stat(os.environ[FOLDER]).st_mode) == 0o700
    assert len(drawn) == 2


def test_local_ray_imported_without_a_token_is_refused(ray, monkeypatch):
    monkeypatch.delenv(AUTHENTICATION[1])
    with Cluster("local") as cluster, raises(ConfigurationError, "ray-without-token"):
        _ = cluster.cores
    assert not ray.begun
    with Cluster("ray://127.0.0.1") as elsewhere:  # a cluster's own machines decide whom they answer
        assert elsewhere.cores


def test_error_about_a_missing_cluster_quotes_rays_message(ray):
    with Cluster("auto") as cluster, raises(ConfigurationError, "ray-unreachable") as refused:
        _ = cluster.cores
    assert refused.value.problem == "--ray auto: no cluster was found"


def test_second_ray_connection_in_one_process_is_refused(ray):
    with Cluster("local") as first, Cluster("local") as second:
        assert first.cores
        with raises(ConfigurationError, "ray-in-use"):
            _ = second.cores
