"""Whoever reaches the ports of Ray on this machine without its token, or with another one, gets nothing."""

from __future__ import annotations

import http.client
import posixpath
import urllib.error
import urllib.request

import pytest

from undersong_server.cluster import Cluster

pytestmark = pytest.mark.slow

METHODS = (
    "InternalKVGcsService/InternalKVKeys",
    "InternalKVGcsService/InternalKVPut",
    "ActorInfoGcsService/RegisterActor",
    "NodeManagerService/GetNodeStats",
    "NodeManagerService/RequestWorkerLease",
    "CoreWorkerService/PushTask",
    "CoreWorkerService/GetCoreWorkerStats",
    "CoreWorkerService/KillActor",
    "CoreWorkerService/Exit",
    "ObjectManagerService/Pull",
    "ObjectManagerService/Push",
)
TOKENS = (None, "0" * 64)


def over_grpc(place, token):
    """What each method says at a port that speaks gRPC; without those that are not there."""
    import grpc

    said = {}
    with grpc.insecure_channel(place) as channel:
        for method in METHODS:
            metadata = () if token is None else (("authorization", f"Bearer {token}"),)
            try:
                channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=5, metadata=metadata)
                said[method] = "done"
            except grpc.RpcError as error:
                said[method] = error.code().name
    return {method: words for method, words in said.items() if words not in ("UNIMPLEMENTED", "UNAVAILABLE")}


def over_http(place, token):
    """The status of a page and of an action; empty where the port does not speak HTTP."""
    said = {}
    for path, data in (("/metrics", None), ("/get_or_create_runtime_env", b"")):
        header = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            asked = urllib.request.Request(f"http://{place}{path}", data=data, headers=header)
            with urllib.request.urlopen(asked, timeout=5) as answer:
                said[path] = answer.status
        except urllib.error.HTTPError as error:
            said[path] = error.code
        except (OSError, http.client.BadStatusLine):  # the first bytes of HTTP/2 are no status
            continue
    return said


@pytest.mark.parametrize("token", TOKENS, ids=["none", "another"])
def test_every_port_of_ray_refuses_strangers_while_work_continues(token):
    pytest.importorskip("ray")
    psutil = pytest.importorskip("psutil")
    own = psutil.Process()

    def listening_addresses():
        return [
            each.laddr
            for process in (own, *own.children(recursive=True))
            for each in process.net_connections(kind="inet")
            if each.status == psutil.CONN_LISTEN
        ]

    others = listening_addresses()  # of other tests in this process
    with Cluster("local", 2) as cluster:
        assert dict(cluster.each(posixpath.basename, [("a/b",), ("c/d",)])) == {0: "b", 1: "d"}
        listening = [address for address in listening_addresses() if address not in others]
        told = set()
        for address in listening:
            place = f"{'127.0.0.1' if address.ip in ('::', '0.0.0.0') else address.ip}:{address.port}"
            answers = over_http(place, token) or over_grpc(place, token)
            assert answers, place
            assert set(answers.values()) <= {"UNAUTHENTICATED", 401, 403}, (place, answers)
            told |= set(answers)
        assert {*METHODS, "/metrics", "/get_or_create_runtime_env"} == told
        assert dict(cluster.each(posixpath.basename, [("still/here",)])) == {0: "here"}
