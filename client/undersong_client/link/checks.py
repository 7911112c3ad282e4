"""The checks of ``undersong-party check``: each problem that may stop this party, with its cause and remedy."""

import base64
import contextlib
import ipaddress
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

import grpc

from undersong_client import keys
from undersong_client.consent import policy, trust
from undersong_client.home import CLOCK_TOLERANCE_S, PartyHome, clock_words, read_json
from undersong_client.link.connection import REFUSALS, secure_channel
from undersong_client.records import cautions, snapshot
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError, TransportError, UndersongError
from undersong_common.models import fine_tuning
from undersong_common.models.model_files import PACKAGED
from undersong_common.printable import counted, noun, printable
from undersong_protocol.agreement.bounds import weak_delta
from undersong_protocol.agreement.words import opened_numbers
from undersong_protocol.wire.framing import CLOCK_METADATA

Grade = Literal["ok", "warning", "problem"]
HEALTH = "/grpc.health.v1.Health/Check"
CONNECT_S = 8.0  # longest wait for a connection, and for an answer to a question about health
SMALLEST_FREE_BYTES = 2**30
EXPIRY_WARNING_DAYS = 14
# gRPC reads these variables, in this order.
PROXY_VARIABLES, EXEMPTION_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
UNREAD_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY")
DEFAULT_PROXY_PORT = 443
LONGEST_ANSWER_BYTES = 8192
REMEDY_PROXY = "add the coordinator's host to no_proxy, or run with --no-proxy"


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, grade, a sentence, and the remedy for a problem."""

    name: str
    grade: Grade
    says: str
    remedy: str = ""


def check(
    home: PartyHome,
    *,
    checkpoints: Path,
    environment: Mapping[str, str],
    offline: bool = False,
    now_s: float | None = None,
) -> Iterator[Finding]:
    """Runs all checks of a party's folder and yields each finding as it is made; slow checks come last.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        environment: environment variables, for proxies.
        offline: True leaves out the checks that need the coordinator.
        now_s: time now, seconds since the epoch; None takes the clock.
    """
    current_s = time.time() if now_s is None else now_s
    yield _run_check("files", lambda: _check_files(home))
    yield _run_check("keys", lambda: _check_keys(home))
    yield _run_check("policy", lambda: _check_policy(home))
    yield _run_check("budget", lambda: _check_budget(home))
    yield _run_check("data", lambda: _check_data(home, checkpoints, current_s))
    yield from _until_error(_check_data_file(home))
    yield from _until_error(_weak_choices(home))
    yield _run_check("disk", lambda: _check_disk(home))
    yield _run_check("embedder", lambda: _check_embedder(home))
    if home.settings.teacher_model:
        yield _run_check("teacher model", lambda: _check_teacher_model(home))
    yield _run_check("certificate", lambda: _check_certificate(home, current_s))
    yield _check_proxy(home, environment)
    if not offline:
        yield from _check_network(home, environment, time.time if now_s is None else lambda: current_s)


def _run_check(name: str, find_answer: Callable[[], str | Finding]) -> Finding:
    """Returns the answer of one check as a finding; an error becomes a problem."""
    try:
        check_answer = find_answer()
    except UndersongError as error:
        return Finding(name, "problem", error.problem, error.remedy)
    if isinstance(check_answer, Finding):
        return check_answer
    return Finding(name, "ok", check_answer)


def _until_error(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yields findings up to an error, which an earlier check has reported already."""
    with contextlib.suppress(UndersongError):
        yield from findings


def _check_files(home: PartyHome) -> str:
    home.check_modes()
    return "no other user may read this party's files"


def _check_keys(home: PartyHome) -> str:
    for secret_name in keys.SECRETS:
        keys.secret(home, secret_name)
    if home.settings.insecure_noise_seed is not None:
        raise ConfigurationError(
            "this party's keys and noise are reproducible: TESTS ONLY, no privacy at all",
            "make a real one in another folder: undersong-party init",
        )
    return "identity, store and data key are here"


def _check_policy(home: PartyHome) -> str:
    current_policy = policy.read(home)
    if not current_policy.coordinators:
        raise ConfigurationError("no coordinator is trusted", "undersong-party enroll PACKAGE --fingerprint WORDS")
    if not current_policy.statistics:
        raise ConfigurationError(
            "the policy allows no kind of question: every run is refused", "undersong-party policy set --question KIND"
        )
    return (
        f"{counted(len(current_policy.statistics), 'statistic')};"
        f" {opened_numbers(current_policy.minimum_parties - 1)}; each run is"
        f" decided by {current_policy.deciders}"
    )


def _check_budget(home: PartyHome) -> str:
    current_policy = policy.read(home)
    if not current_policy.has_budget:
        raise ConfigurationError(
            "no budget is set: every run is refused", "undersong-party budget set --epsilon E --delta D"
        )
    return (
        f"epsilon {current_policy.total_epsilon:g} at delta {current_policy.total_delta:g} in all,"
        f" {current_policy.run_epsilon:g} a run"
    )


def _check_data(home: PartyHome, checkpoints: Path, now_s: float) -> str:
    data_set = datasets.load(home)
    ledger, _ = datasets.open_ledger(home, policy.read(home), checkpoints, at=now_s)
    counted_entries = counted(len(ledger.entries()), "entry", "entries")
    length_words = snapshot.facts(home).lengths.words
    sealed_words = f"{counted(len(data_set.table), 'record')}, sealed; ledger with {counted_entries}, its chain holds"
    if length_words:
        return f"{sealed_words}; {length_words}"
    return sealed_words


def _check_data_file(home: PartyHome) -> Iterator[Finding]:
    if home.settings.data and (reason := datasets.changed_since(home)):
        yield Finding(
            "data file",
            "warning",
            f"{reason}; this party goes on answering from what was added, and nobody else is told",
            "if it shall count as it is now: undersong-party data add FILE --new-version",
        )


def _weak_choices(home: PartyHome) -> Iterator[Finding]:
    """Warns of policies and budgets that are weaker than advised, and of records that do not suit standing consent."""
    current_policy = policy.read(home)
    for sentence in cautions.weak_policy(current_policy):
        yield Finding("policy", "warning", sentence, "if this is not meant: undersong-party policy set --help")
    for sentence in weak_delta(current_policy.total_delta):
        yield Finding("budget", "warning", sentence, "undersong-party budget set --help")
    if current_policy.approval != "standing":
        return
    for caution in cautions.of_standing_consent(current_policy, datasets.load(home).table, home.settings.user_is):
        yield Finding(
            "standing consent",
            "warning",
            f"{caution} (nobody else is told)",
            "declare a bound on the number of patients, or have each run approved: undersong-party policy set",
        )


def _check_disk(home: PartyHome) -> str:
    free_bytes = shutil.disk_usage(home.path).free
    free_words = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < SMALLEST_FREE_BYTES:
        raise ConfigurationError(
            f"the disk has only {free_words}, and needs {SMALLEST_FREE_BYTES / 2**30:.0f}",
            f"make room on the disk of {home.path}: a release needs its journal",
        )
    return free_words


def _check_embedder(home: PartyHome) -> str:
    from undersong_client.answering.assemble import embedder_of

    if home.settings.data:
        embedder = embedder_of(home)
    else:
        embedder = home.settings.load_embedder()
    if home.settings.embedder != PACKAGED:
        embedder.try_out()
    window_words = f"{embedder.max_windows} windows of a long text"
    return f"{home.settings.embedder}, SHA-256 {embedder.fingerprint[:16]}..., {window_words}"


def _check_teacher_model(home: PartyHome) -> str:

    fine_tuning.load(home.settings.teacher_model, classes=2)
    return f"{home.settings.teacher_model} can be fine-tuned"


def _check_certificate(home: PartyHome, now_s: float) -> Finding:
    trust.check_clock(home, now_s)
    _, valid_until = trust.validity(home)
    days_left = (valid_until - datetime.fromtimestamp(now_s, UTC)).total_seconds() / 86400
    expiry_grade: Grade = "warning" if days_left < EXPIRY_WARNING_DAYS else "ok"
    return Finding(
        "certificate",
        expiry_grade,
        f"valid until {valid_until:%Y-%m-%d}, {days_left:.0f} {noun(days_left, 'day')}",
        "start the daemon: it renews by itself" if expiry_grade == "warning" else "",
    )


def _check_proxy(home: PartyHome, environment: Mapping[str, str]) -> Finding:
    variable_name, proxy_value = _first_variable(environment, PROXY_VARIABLES)
    if not proxy_value:
        ignored_variables = [variable for variable in UNREAD_PROXY_VARIABLES if environment.get(variable)]
        ignored_words = (
            f"{', '.join(ignored_variables)} is set and not read: the daemon reads {', '.join(PROXY_VARIABLES)}"
        )
        return Finding("proxy", "ok", ignored_words if ignored_variables else "none is configured")
    with contextlib.suppress(UndersongError):  # The checks below report the error.
        addresses = trust.coordinator(home).addresses
        if not any(_proxy_of(environment, address) for address in addresses):
            return Finding(
                "proxy", "ok", f"{variable_name} is set and not used: the daemon dials the coordinator directly"
            )
    return Finding(
        "proxy",
        "warning",
        f"{variable_name} is set: the daemon dials through it",
        f"a proxy must pass CONNECT to the coordinator's port; else {REMEDY_PROXY}",
    )


def _first_variable(environment: Mapping[str, str], names: Sequence[str]) -> tuple[str, str]:
    """Returns the first of these variables that is set, with its value, which may be empty."""
    return next(
        ((variable_name, environment[variable_name]) for variable_name in names if variable_name in environment),
        ("", ""),
    )


def _proxy_of(environment: Mapping[str, str], address: str) -> SplitResult | None:
    """Returns the proxy through which gRPC dials an address, by gRPC's own rules; None if it dials directly."""
    try:
        proxy_address = urlsplit(_first_variable(environment, PROXY_VARIABLES)[1])
        is_usable = (
            proxy_address.scheme == "http" and proxy_address.hostname and (proxy_address.port or DEFAULT_PROXY_PORT)
        )
    except ValueError:
        return None
    host = address.rpartition(":")[0].strip("[]")
    excepted_hosts = _first_variable(environment, EXEMPTION_VARIABLES)[1].split(",")
    if not is_usable or any(
        _is_exempt(excepted_host.strip(), host) for excepted_host in excepted_hosts if excepted_host
    ):
        return None
    return proxy_address


def _is_exempt(entry: str, host: str) -> bool:
    """Tells if one entry of ``no_proxy`` holds for a host: the end of its name, or a network."""
    if host.lower().endswith(entry.lower()):
        return True
    with contextlib.suppress(ValueError):
        return "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return False


def _check_network(home: PartyHome, environment: Mapping[str, str], clock: Callable[[], float]) -> Iterator[Finding]:
    try:
        coordinator = trust.coordinator(home)
    except UndersongError as error:
        yield Finding("coordinator", "problem", error.problem, error.remedy)
        return
    clock_offset_s = None
    for address in coordinator.addresses:
        health_answer, coordinator_s = _ask_health(home, coordinator, address)
        if coordinator_s is not None and clock_offset_s is None:
            clock_offset_s = clock() - coordinator_s
        if health_answer is None:
            yield Finding(f"coordinator {address}", "ok", "answers; TLS 1.3, both certificates are good")
        elif health_answer:
            yield Finding(
                f"coordinator {address}",
                "problem",
                health_answer,
                "ask the operator whether this party was revoked, and for a new invitation if so",
            )
        else:
            yield from _explain_silence(home, coordinator, address, _proxy_of(environment, address))
    yield _check_clock(home, clock_offset_s)


def _ask_health(
    home: PartyHome, coordinator: trust.TrustedCoordinator, address: str
) -> tuple[str | None, float | None]:
    """Asks the coordinator if it is well; returns its answer and its clock (seconds since the epoch; None if untold).

    The answer is None if all is well, the coordinator's words if it refuses this party, and "" if none comes.
    """
    try:
        tls_credential = keys.credential(home)
    except UndersongError:
        return "", None
    with secure_channel(address, coordinator, tls_credential) as channel:
        try:
            _, health_call = channel.unary_unary(HEALTH).with_call(b"", timeout=CONNECT_S)
            clock_metadata = dict(health_call.initial_metadata()).get(CLOCK_METADATA)
            return None, None if clock_metadata is None else float(clock_metadata)
        except grpc.RpcError as error:
            if error.code() in REFUSALS:
                return printable(str(error.details())), None
            return None if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND) else "", None
        except ValueError:
            return None, None


def _explain_silence(
    home: PartyHome, coordinator: trust.TrustedCoordinator, address: str, proxy: SplitResult | None
) -> Iterator[Finding]:
    coordinator_host = address.rpartition(":")[0].strip("[]")
    coordinator_port = int(address.rpartition(":")[2])
    if proxy is not None:
        yield from _dial_through_proxy(home, coordinator, coordinator_host, address, proxy)
        return
    try:
        host_addresses = socket.getaddrinfo(coordinator_host, coordinator_port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield Finding(
            f"name {coordinator_host}",
            "problem",
            f"has no address: {error.strerror}",
            "check the name with the operator, and this machine's DNS",
        )
        return
    yield Finding(f"name {coordinator_host}", "ok", str(host_addresses[0][4][0]))
    yield from _dial_directly(home, coordinator, coordinator_host, coordinator_port)


def _dial_directly(home: PartyHome, coordinator: trust.TrustedCoordinator, host: str, port: int) -> Iterator[Finding]:
    port_words = f"port {host}:{port}"
    try:
        raw_socket = socket.create_connection((host, port), timeout=CONNECT_S)
    except OSError as error:
        yield Finding(
            port_words,
            "problem",
            f"cannot be reached: {error.strerror or 'no answer'}",
            _remedy_of_dial(error),
        )
        return
    yield Finding(port_words, "ok", "open")
    with raw_socket:
        yield _run_check(f"TLS {host}", lambda: _raise_tls_fault(home, coordinator, host, raw_socket))


def _remedy_of_dial(error: OSError) -> str:
    """Returns the remedy for a failed connection; after a refusal it names no firewall, as the machine was reached."""
    team_remedy = "ask your network team to allow outgoing TCP to this address; nothing inbound is needed"
    if isinstance(error, ConnectionRefusedError):
        return f"its machine answers and nothing listens there: telephone the operator first; then {team_remedy}"
    return team_remedy


def _dial_through_proxy(
    home: PartyHome,
    coordinator: trust.TrustedCoordinator,
    coordinator_host: str,
    coordinator_address: str,
    proxy: SplitResult,
) -> Iterator[Finding]:
    """Dials as the daemon does: the proxy alone resolves the coordinator's name and reaches its port."""
    proxy_host = proxy.hostname or ""
    proxy_port = proxy.port or DEFAULT_PROXY_PORT
    proxy_words = f"proxy {printable(proxy_host)}:{proxy_port}"
    encoded_login = base64.b64encode(unquote(proxy.netloc.rpartition("@")[0]).encode()).decode()
    if encoded_login:
        login_header = f"Proxy-Authorization: Basic {encoded_login}\r\n"
    else:
        login_header = ""
    try:
        raw_socket = socket.create_connection((proxy_host, proxy_port), timeout=CONNECT_S)
    except OSError as error:
        failure_words = f"cannot be reached: {error.strerror or 'no answer'}"
        yield Finding(
            proxy_words, "problem", failure_words, f"start the proxy or correct its address; or {REMEDY_PROXY}"
        )
        return
    with raw_socket:
        proxy_answer = b""
        with contextlib.suppress(OSError):
            raw_socket.sendall(
                f"CONNECT {coordinator_address} HTTP/1.1\r\nHost: {coordinator_address}\r\n{login_header}\r\n".encode()
            )
            while (
                b"\r\n\r\n" not in proxy_answer
                and len(proxy_answer) < LONGEST_ANSWER_BYTES
                and (answer_byte := raw_socket.recv(1))
            ):
                proxy_answer += answer_byte
        status_line = proxy_answer.partition(b"\r\n")[0].decode("latin-1")
        if status_line.split(" ")[1:2] != ["200"]:
            failure_words = (
                f"does not pass CONNECT to {coordinator_address}: {printable(status_line, 100) or 'no answer'}"
            )
            yield Finding(
                proxy_words, "problem", failure_words, f"ask who runs the proxy to allow it; or {REMEDY_PROXY}"
            )
            return
        yield Finding(proxy_words, "ok", f"passes CONNECT to {coordinator_address}")
        yield _run_check(
            f"TLS {coordinator_host}", lambda: _raise_tls_fault(home, coordinator, coordinator_host, raw_socket)
        )


def _raise_tls_fault(
    home: PartyHome, coordinator: trust.TrustedCoordinator, host: str, raw_socket: socket.socket
) -> NoReturn:
    """Raises the error that says why no coordinator answers on an open connection."""
    tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls_context.minimum_version = ssl.TLSVersion.TLSv1_3
    tls_context.load_verify_locations(cadata=coordinator.ca_certificate)
    tls_context.set_alpn_protocols(["h2"])
    try:
        keys.credential(home)
        tls_context.load_cert_chain(home.keys / "tls.pem")
        with tls_context.wrap_socket(raw_socket, server_hostname=coordinator.server_name or host) as tls_socket:
            tls_socket.settimeout(1.0)
            # A server that refuses our certificate says so after its own handshake: listen for it a moment.
            with contextlib.suppress(TimeoutError):
                tls_socket.recv(1)
            raise TransportError(
                f"{tls_socket.version()} is agreed on, but no Undersong coordinator answers",
                "a proxy stands between and does not pass HTTP/2, or another program listens there",
            )
    except ssl.SSLCertVerificationError as error:
        raise TransportError(
            f"the server's certificate is not accepted: {error.verify_message}",
            "a proxy that opens TLS stands between, the clock is wrong, or it is another server",
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise TransportError(
            f"the TLS connection to {coordinator.server_name or host} failed: {reason}",
            "if the reason names a certificate, have the operator look whether this party's is revoked or expired",
        ) from None


def _check_clock(home: PartyHome, offset_s: float | None) -> Finding:
    """Compares the clocks. ``offset_s`` is from the coordinator's; None takes the one noted at the last connection."""
    time_words = ""
    if offset_s is None:
        time_words = " at the last connection"
        try:
            offset_s = float(read_json(home.status)["clock_offset_s"])
        except (UndersongError, KeyError, TypeError, ValueError):
            return Finding("clock", "ok", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; compared at the first connection")
    if abs(offset_s) > CLOCK_TOLERANCE_S:
        return Finding(
            "clock",
            "problem",
            f"{clock_words(offset_s)}{time_words}",
            "set this machine's clock (timedatectl set-ntp true), or tell the operator that theirs is wrong",
        )
    return Finding("clock", "ok", f"{abs(offset_s):.1f} s from the coordinator's{time_words}")
