"""Serves a page: opens the socket, runs the server, and prints a one-time link at the terminal."""

import ipaddress
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file

if TYPE_CHECKING:
    import uvicorn

    from undersong_common.pages.site import Site


@dataclass(frozen=True)
class Listening:
    """Address and certificate that a page listens with.

    Attributes:
        host, port: address of the socket; port 0 takes a free one.
        names: further names under which browsers reach the page, each ``HOST`` or ``HOST:PORT``.
        certificate, key: PEM files for TLS; None for no TLS.
        proxy: IP address of a proxy that ends TLS for browsers; "" for no proxy. With a proxy, only ``names`` are
            answered, and ``X-Forwarded-For`` is believed from this address only.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    proxy: str = ""

    def __post_init__(self) -> None:
        ConfigurationError.raise_first(
            (
                (self.certificate is None) != (self.key is None),
                "TLS needs a certificate and its key",
                "name both, or neither",
                "certificate-without-key",
            ),
            (
                self.proxy and not (self.names and _is_address(self.proxy)),
                f"the proxy {self.proxy!r} is no IP address, or the page behind it has no name"
                f" (names: {', '.join(self.names) or 'none'})",
                "name the proxy's IP address, and with --name the host that browsers ask for",
                "proxy-or-name",
            ),
            (
                any("/" in host_name for host_name in self.names),
                f"{', '.join(host_name for host_name in self.names if '/' in host_name)}: a page has a host of its"
                " own, and is not"
                " served under a path of a shared one",
                "give it a host name or a port of its own",
                "page-under-a-path",
            ),
            (
                self.certificate is None and not is_loopback(self.host),
                f"other machines can reach the page at {self.host}, and passwords would cross the network in clear",
                "give --tls-certificate and --tls-key, or listen on 127.0.0.1",
                "page-without-tls",
            ),
        )

    @property
    def tls(self) -> bool:
        """True if browsers reach the page over TLS."""
        return self.certificate is not None or bool(self.proxy)

    def hosts(self, port: int) -> tuple[str, ...]:
        """Returns the values of the Host header that are answered if the socket has this port."""
        if is_loopback(self.host):
            socket_hosts = ["localhost", "127.0.0.1", "[::1]"]
        else:
            socket_hosts = [self.host]
        hosts_with_port = [
            self._with_port(host_name, port) for host_name in (*([] if self.proxy else socket_hosts), *self.names)
        ]
        return tuple(
            dict.fromkeys(
                [*hosts_with_port, *(host_name.removesuffix(self._default_port) for host_name in hosts_with_port)]
            )
        )

    def open(self) -> socket.socket:
        """Opens and returns the listening socket. Raises ConfigurationError if it cannot be bound."""
        listening_socket = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening_socket.bind((self.host, self.port))
            # A link is printed before the server runs. Whoever follows it at once waits and is not refused.
            listening_socket.listen()
        except OSError as error:
            listening_socket.close()
            raise ConfigurationError(
                f"{self.host}:{self.port}: cannot be listened on: {error.strerror}", "name another port"
            ) from None
        return listening_socket

    def address(self, port: int) -> str:
        """Returns the page's address for a browser, by the first of ``names`` if there is one."""
        if self.names:
            first_name = self.names[0]
        elif is_loopback(self.host):
            first_name = "127.0.0.1"
        else:
            first_name = self.host
        return (
            f"{'https' if self.tls else 'http'}://{self._with_port(first_name, port).removesuffix(self._default_port)}"
        )

    @property
    def _default_port(self) -> str:
        if self.tls:
            return ":443"
        return ":80"

    def _with_port(self, name: str, port: int) -> str:
        has_port = name.rpartition(":")[2].isdigit() and not name.endswith("]")
        if has_port:
            return name
        return f"{name}:{443 if self.proxy else port}"


def is_loopback(host: str) -> bool:
    """Returns True if an address reaches this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    bare_host = host.strip("[]")
    return host == "localhost" or (_is_address(bare_host) and ipaddress.ip_address(bare_host).is_loopback)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def print_link(folder: Path, person: str, role: str, *, address: str = "") -> None:
    """Prints a one-time log-in link for a person, after adding the person or changing the role to ``role``.

    The secret stands behind the # of the link, so that a browser sends it to no server's log.

    Args:
        folder: folder with the page's accounts.
        address: address of the page; "" takes the one that was printed last.
    """
    from undersong_common.pages.accounts import LINK_S, Accounts
    from undersong_common.pages.duties import terminal_identity
    from undersong_common.pages.store import FILE_NAME, AuditLog, PageStore

    page_store = PageStore(folder)
    accounts = Accounts(page_store)
    identities = (terminal_identity(),)
    accounts.set_role(person, role, by=identities)
    link_secret = accounts.link(person, by=identities)
    page_store.close()
    AuditLog(folder / FILE_NAME).note(identities[0], "link", f"{person}, {role}")
    address_file = folder / "address"
    if address:
        replace_file(address_file, address.encode())
    address = address or (address_file.read_text() if address_file.exists() else "the page's address")
    print(f"{address}/enter#{link_secret}", flush=True)
    print(f"lets {person} ({role}) in once, within {LINK_S / 60:.0f} minutes", flush=True)


def serve(site: "Site", listening: Listening, listener: socket.socket) -> None:
    """Serves a page until SIGTERM or SIGINT. It logs no request, because an address may hold confidential names."""
    import uvicorn

    logging.getLogger("uvicorn.access").disabled = True
    server = uvicorn.Server(configuration(site, listening))
    usual_handle_exit = server.handle_exit

    def handle_exit(number: int, frame: Any) -> None:
        site.ending.set()  # Open streams end by themselves once this is set.
        usual_handle_exit(number, frame)

    server.handle_exit = handle_exit
    server.run(sockets=[listener])


def configuration(site: "Site", listening: Listening) -> "uvicorn.Config":
    """Returns the settings of the HTTP server (uvicorn) for a page."""
    import uvicorn

    from undersong_common.pages.frame import MOST_AT_WORK, BrowserConnection

    return uvicorn.Config(
        site.application,
        http=BrowserConnection,
        log_config=None,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=bool(listening.proxy),
        forwarded_allow_ips=listening.proxy,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=15,
        limit_concurrency=MOST_AT_WORK,
        ssl_certfile=None if listening.certificate is None else str(listening.certificate),
        ssl_keyfile=None if listening.key is None else str(listening.key),
    )
