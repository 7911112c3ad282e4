"""One attempt: a request is sent and an answer or a fault comes back, bounded in time and bytes (an :class:`Exchange`).

A server may send a byte now and then for ever. Every read therefore has what is left of the attempt's time, not a time
of its own, and a body that grows beyond its bound is dropped.
"""

import ssl
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from undersong_common.errors import ConfigurationError
from undersong_common.version import SOFTWARE
from undersong_server.generators.kinds.openai.states import Exchange, decompress

if TYPE_CHECKING:
    from pathlib import Path

    import httpcore

FIXED_BYTES, BYTES_A_TOKEN = 65536, 32  # bound of an answer's body: the first, and the second per allowed token
_CERTIFICATE_WORDS = ("certificate", "hostname", "self-signed", "self signed")
_ends_at: ContextVar[float] = ContextVar("end of the attempt", default=float("inf"))


def longest_body(tokens: int) -> int:
    """Returns the longest allowed body, in bytes, of an answer that may have so many tokens."""
    return FIXED_BYTES + BYTES_A_TOKEN * tokens


class EndpointConnection:
    """The connections to one address, shared by the threads of a generator."""

    def __init__(
        self, base_url: str, headers: Mapping[str, str], *, proxy: str, ca_file: "Path | None", name: str
    ) -> None:
        """Connects at the first exchange.

        Args:
            headers: sent with every request, and nothing beside them: the environment adds none.
            proxy: that calls go through; "" goes straight.
            ca_file: certificates by which the endpoint's is checked; None takes the usual.
            name: the generator's, for messages.
        """
        self.base_url = base_url
        self._headers = headers
        self._proxy = proxy
        self._ca_file = ca_file
        self._name = name

    @cached_property
    def pool(self) -> "httpcore.ConnectionPool":
        """The pool of connections, made at first use. Raises ConfigurationError for a ca_file without certificates."""
        import httpcore

        try:
            # Plain http needs no certificates, which take a third of a second to read.
            certificate_context = None
            if self._ca_file is not None:
                certificate_context = ssl.create_default_context(cafile=str(self._ca_file))
            elif self.base_url.startswith("https:"):
                certificate_context = httpcore.default_ssl_context()
        except (OSError, ssl.SSLError):
            raise ConfigurationError(
                f"generator {self._name}: ca_file {self._ca_file}: holds no certificate in PEM form",
                "name the file with your authority's certificate",
                code="ca-file-malformed",
            ) from None
        options: dict[str, Any] = {
            "ssl_context": certificate_context,
            "max_connections": None,
            "network_backend": _timed_backend(),
        }
        if self._proxy:
            return httpcore.HTTPProxy(self._proxy, **options)
        return httpcore.ConnectionPool(**options)

    def _make_headers(self, content: bytes, further_headers: Mapping[str, str]) -> dict[str, str]:
        """Returns a request's headers; ``further_headers`` replace those of the settings, and these replace ours."""
        return {
            "Host": urlsplit(self.base_url).netloc,
            "Accept": "application/json",
            "Accept-Encoding": "gzip, deflate",
            "Connection": "keep-alive",
            "User-Agent": SOFTWARE,
            **({"Content-Type": "application/json", "Content-Length": str(len(content))} if content else {}),
            **self._headers,
            **further_headers,
        }

    def exchange(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *,
        timeout_s: float,
        most_bytes: int,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Sends one request and returns its answer or fault; raises nothing for a fault of the connection or a body."""
        import httpcore

        token = _ends_at.set(time.monotonic() + timeout_s)
        sent_headers = self._make_headers(content, headers or {})
        pool = self.pool
        failed_stage = "unreachable"
        try:
            with pool.stream(
                method,
                f"{self.base_url.rstrip('/')}{path}",
                headers=[
                    (header_name.encode(), header_value.encode()) for header_name, header_value in sent_headers.items()
                ],
                content=content or None,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)},
            ) as response:
                failed_stage = "cut"
                body_bytes = _join_bounded(response.iter_stream(), most_bytes)
                received_headers = {
                    header_name.decode("latin-1").casefold(): header_value.decode("latin-1")
                    for header_name, header_value in response.headers
                }
            if body_bytes is None:
                return Exchange(fault="large", detail=f"the answer is longer than {most_bytes} bytes")
            content_encoding = received_headers.get("content-encoding", "").strip().casefold()
            plain_body = decompress(body_bytes, content_encoding, most_bytes)
            if plain_body is None:
                return Exchange(fault="cut", detail=f"the answer's content encoding {content_encoding} cannot be read")
            return Exchange(response.status, received_headers, plain_body)
        except (httpcore.ConnectTimeout, httpcore.PoolTimeout):
            return Exchange(fault="unreachable", detail=f"no connection within {timeout_s:g} s")
        except httpcore.TimeoutException:
            return Exchange(fault="late", detail=f"no answer within {timeout_s:g} s")
        except httpcore.ProxyError as error:
            return Exchange(fault="proxy", detail=f"the proxy refuses the connection: {error}")
        except httpcore.ConnectError as error:
            error_words = str(error)
            if any(certificate_word in error_words.casefold() for certificate_word in _CERTIFICATE_WORDS):
                return Exchange(fault="certificate", detail=f"its certificate is not trusted: {error_words}")
            return Exchange(fault="unreachable", detail=f"no connection: {error_words}")
        except httpcore.UnsupportedProtocol as error:
            return Exchange(fault="unreachable", detail=f"no connection: {error}")
        # The text of an error may repeat what was sent, with its key: its class is enough.
        except Exception as error:  # noqa: BLE001 - whatever a broken answer makes a library raise, it is this answer's
            stage_words = "while its body was read" if failed_stage == "cut" else "before an answer came"
            return Exchange(fault="cut", detail=f"the connection was cut {stage_words} ({type(error).__name__})")
        finally:
            _ends_at.reset(token)


def _join_bounded(chunks: Iterable[bytes], most: int) -> bytes | None:
    """Returns the joined chunks; None if they are longer than ``most`` bytes, or come after the attempt's end."""
    import httpcore

    body_bytes = bytearray()
    for body_chunk in chunks:
        body_bytes += body_chunk
        if len(body_bytes) > most:
            return None
        if time.monotonic() > _ends_at.get():
            raise httpcore.ReadTimeout
    return bytes(body_bytes)


def _timed_backend() -> "httpcore.NetworkBackend":
    """Returns a network backend whose reads and writes time out at the end of the attempt that they belong to."""
    import httpcore

    def left_s(timeout: float | None) -> float:
        # A timeout of zero would make the socket non-blocking.
        return max(0.001, min(timeout or float("inf"), _ends_at.get() - time.monotonic()))

    def check_time() -> None:
        if time.monotonic() > _ends_at.get():
            raise httpcore.ReadTimeout

    class DeadlineStream(httpcore.NetworkStream):
        def __init__(self, stream: httpcore.NetworkStream) -> None:
            self._stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            check_time()
            return self._stream.read(max_bytes, left_s(timeout))

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self._stream.write(buffer, left_s(timeout))

        def close(self) -> None:
            self._stream.close()

        def start_tls(
            self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
        ) -> httpcore.NetworkStream:
            return DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, left_s(timeout)))

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

    class DeadlineBackend(httpcore.SyncBackend):
        def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Any = None,
        ) -> DeadlineStream:
            return DeadlineStream(super().connect_tcp(host, port, left_s(timeout), local_address, socket_options))

    return DeadlineBackend()
