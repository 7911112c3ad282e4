"""Settings that gRPC reads from the environment only: TLS 1.3 and nothing older, and the thread that reads sockets."""

from __future__ import annotations

import os
import sys

from undersong_common.errors import InternalError

# Before TLS 1.3 a suite names how the server signs. No certificate here is RSA, so no older version can agree on one.
CIPHER_SUITES = "ECDHE-RSA-AES256-GCM-SHA384"

# By default threads of an event engine read the sockets and wake the thread from which Python hears what has come; so
# that one reads them itself. A version of gRPC that knows these names no more goes on as it does by default.
POLLING = "-event_engine_client,-event_engine_listener"


def only_tls_1_3() -> None:
    """Call it at the entry point, before gRPC is imported (it reads its environment once)."""
    if "grpc" in sys.modules:
        raise InternalError("gRPC was imported before TLS was set up")
    os.environ["GRPC_SSL_CIPHER_SUITES"] = CIPHER_SUITES
    os.environ.setdefault("GRPC_EXPERIMENTS", POLLING)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a refused handshake is told once, in words, by whoever dialled
