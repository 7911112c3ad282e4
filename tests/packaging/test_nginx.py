"""nginx in front: TLS of browsers ends at it, TLS of hospitals passes through it; run with the recipes that ship."""

import re
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import grpc
import httpx
import pytest

from tests.doubles.authority import Authority
from tests.doubles.processes import OPERATOR, ROOT, Process, free_port
from tests.doubles.stream import Credentials, Served, Stream, make_home
from undersong_common.errors import TransportError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("nginx") is None or not Path("/usr/lib/nginx/modules/ngx_stream_module.so").exists(),
        reason="nginx or its streams are not installed (Debian: nginx-light, libnginx-mod-stream)",
    ),
]
NAME = "console.example.org"


@pytest.fixture
def nginx(tmp_path):
    """Starts nginx with the shipped recipes, some words replaced; ended with the test."""
    started = []

    def start(http="", stream=""):
        text = (
            f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; include /etc/nginx/modules-enabled/*.conf;"
            f" events {{ }} http {{ {http} }} {stream}"
        )
        (tmp_path / "nginx.conf").write_text(text)
        command = ["nginx", "-c", tmp_path / "nginx.conf", "-g", "daemon off;"]
        started.append(subprocess.Popen(command))

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


def recipe(name, changes):
    text = (ROOT / "docker" / "nginx" / name).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, str(new))
    return text


def test_nginx_terminates_the_tls_of_browsers(nginx, tmp_path):
    outside, inside, authority = free_port(), free_port(), Authority()
    key, certificate = authority.server(NAME)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "certificate.pem").write_bytes(certificate)
    changes = {
        "listen 443": f"listen {outside}",
        "/etc/ssl/console.pem": tmp_path / "certificate.pem",
        "/etc/ssl/private/console.key": tmp_path / "key.pem",
        "127.0.0.1:8700": f"127.0.0.1:{inside}",
    }
    make_home(tmp_path / "home")
    arguments = ["console", "serve", "--home", tmp_path / "home", "--port", inside]
    arguments += ["--behind-proxy", "127.0.0.1", "--name", NAME]
    trusted = ssl.create_default_context(cadata=authority.pem)
    asked = {"extensions": {"sni_hostname": NAME}}
    forged = {"Host": NAME, "X-Forwarded-For": "192.0.2.66"}
    with (
        Process(OPERATOR, arguments, tmp_path / "console.log", {}) as console,
        httpx.Client(
            base_url=f"https://127.0.0.1:{outside}",
            transport=httpx.HTTPTransport(verify=trusted, local_address="127.0.0.77"),
            headers=forged,
        ) as client,
    ):
        code = wait_for(lambda: re.search(rf"https://{NAME}/enter#(\S+)", console.text()))[1]
        nginx(http=recipe("pages.conf", changes))
        form = wait_for(lambda: read_page(client, "/enter", **asked))
        cookie = form.headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert "Secure" in cookie
        fields = {"csrf": re.search(r'name="csrf" value="([^"]*)"', form.text)[1], "code": code}
        sent = {"Origin": f"https://{NAME}", "Cookie": cookie.partition(";")[0]}
        entered = client.post("/enter", data=fields, headers=sent, **asked)
        assert entered.status_code == 303, entered.text
        session = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}
        base = re.match(r"/s/[\w-]{43}", entered.headers["location"])[0]
        people = client.get(f"{base}/people", headers=session, **asked)
        assert "127.0.0.77" in people.text  # the browser's address, as nginx saw it
        assert "192.0.2.66" not in people.text  # and not what the browser said
        with client.stream("GET", f"{base}/stream?topic=all", headers=session, **asked) as live:
            assert next(live.iter_lines()).startswith("event: pulse")
        for other in ("other.example.org", f"127.0.0.1:{inside}"):
            assert client.get("/login", headers={"Host": other}, **asked).status_code == 421
    assert "/s/" not in "".join(path.read_text() for path in tmp_path.glob("**/*.log"))


def test_nginx_passes_the_tls_of_hospitals_through(nginx, tmp_path):
    home = make_home(tmp_path / "home")
    keys, outside = Credentials(home, "heart"), free_port()
    with Served(home) as served:
        changes = {"listen 7443": f"listen 127.0.0.1:{outside}", "127.0.0.1:7444": f"127.0.0.1:{served.port}"}
        nginx(stream=recipe("coordinator.conf", changes))

        def greeted():
            with Stream(outside, keys.for_grpc) as stream:
                stream.hello("heart")
                stream.answer(lambda request: request)
                return served.transport.exchange({"heart": b"echo"}, timeout_s=10.0)

        assert wait_for(greeted) == {"heart": b"echo"}


def read_page(client, path, **options):
    answer = client.get(path, **options)
    return answer if answer.status_code == 200 else None


def wait_for(attempt, timeout_s=30.0):
    """What ``attempt`` returns once it returns something."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            if found := attempt():
                return found
            failed = None
        except (httpx.TransportError, grpc.RpcError, TransportError) as error:
            failed = error
        assert time.monotonic() < end, failed
        time.sleep(0.1)
