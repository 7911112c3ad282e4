"""One private sum over native gRPC with many parties: one coordinator, and processes that hold many parties each.

    python -m benchmarks.native [--parties N ...] [--processes P] [--patience S] [--keepalive S] [--json]

Every party is the program's own daemon with its own folder, keys, certificate, stream, ledger and encrypted journal;
only its embedder is light (a hashed direction for each text), and many of them are threads of one process, where each
verifies every signature itself. The coordinator's server, transport and driver run in this process. One vote over
6 000 public candidates, nearest and furthest: 12 000 coordinates. A tenth of the parties fall silent: their processes
end between the agreement and the sum. JSON: a list with one object a size: ``parties``, ``survivors``,
``post_quantum``, ``sum_s`` (wall time, with the ``patience_s`` for which it waits once for silent parties),
``coordinator_cpu_s`` (this process during the sum), ``coordinator_peak_bytes`` (its largest resident set),
``party_cpu_s`` (processor time of the parties' processes during the sum over the parties that answer),
``coordinator_idle``, ``party_idle`` (processor seconds a second while nothing is asked, for all streams and per party),
``bytes_down``, ``bytes_up`` (per party), ``load_average``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federation import ROOT, cpu_seconds, environment, serve_coordinator, wait
from undersong_client import keys
from undersong_client.consent import policy
from undersong_client.consent import trust as joining
from undersong_client.home import Declared, PartyHome, PartySettings
from undersong_client.storage.addition import Addition
from undersong_common.models.embedding import publishable
from undersong_common.program.entry import only_tls_1_3
from undersong_protocol import statistics
from undersong_protocol.agreement.enrolment import EnrolmentRequest
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.graph import COMPLETE_UP_TO
from undersong_protocol.secagg.parameters import Member, default_threshold
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire.public import Input, Segment, encode_embeddings
from undersong_server import defaults

SIZES = (100, 300, 1000)
CANDIDATES = 6000
RECORDS = 20
PATIENCE_S = 60.0
SWITCH_S = 0.5
IDLE_S = 20.0
EMBEDDER = "00" * 32


def host_parties(folder: Path, names: list[str]) -> None:
    """Runs the daemons of these parties, each in a thread, until the process is ended."""
    only_tls_1_3()  # must be set before gRPC is imported
    from tests.doubles.parties import DIMENSION, embed
    from undersong_client.answering.assemble import assemble
    from undersong_client.answering.computation import HospitalComputation
    from undersong_client.link.daemon import Daemon
    from undersong_protocol.agreement import manifest
    from undersong_protocol.secagg import keys as attempt_keys

    class Light:
        fingerprint = EMBEDDER
        dimension = DIMENSION

        def encode(self, texts: Any, progress: Any = None) -> Any:
            return embed(texts)

    # Hundreds of threads share Python's lock: each that waits for it wakes once in this interval, by default 5 ms.
    sys.setswitchinterval(SWITCH_S)
    # One process remembers what it has verified: here every party is to verify for itself, as one of its own would.
    unremembered = attempt_keys.verified.__wrapped__
    for module in (attempt_keys, manifest):
        vars(module)["verified"] = unremembered
    embedder: Any = Light()
    for name in names:
        home = PartyHome(folder / name)
        assembled = assemble(
            home,
            checkpoints=folder / "marks" / name,
            clock=time.time,
            embedder=embedder,
            computation=HospitalComputation(home, embedder),
        )
        threading.Thread(target=Daemon(home, assembled, use_proxy=False).run, daemon=True).start()
    threading.Event().wait()


def enrol(folder: Path, coordinator: Any, name: str) -> None:
    """Makes a party's folder with keys, certificate, policy, budget and records, by the functions of its commands."""
    home = PartyHome.create(folder / name, PartySettings(party=name))
    keys.create(home)
    package = coordinator.invite(name, now=time.time())
    allowed = policy.HospitalPolicy(
        statistics=tuple(statistics.names()),
        run_epsilon=math.inf,
        total_epsilon=math.inf,
        total_delta=1e-3,
        approval="standing",
        require_post_quantum="never",  # larger federations are measured without
    )
    policy.write(home, allowed)
    request = EnrolmentRequest.parse(joining.accept(home, package, package.fingerprint))
    joining.install(home, coordinator.sign(request, now=time.time()))
    notes = folder / f"{name}.jsonl"
    rows = [{"text": f"{name} note {number}", "label": "ab"[number % 2]} for number in range(RECORDS)]
    notes.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoints = folder / "marks" / name
    Addition(home, Declared(str(notes), "text", "label"), policy.read(home), checkpoints, time.time()).run()


def measure(parties: int, processes: int, patience_s: float, keepalive_s: float) -> dict[str, Any]:
    """Runs one sum with this number of parties; returns the JSON figures of the module's docstring."""
    from tests.doubles.parties import DIMENSION
    from undersong_server.database.journal import Journal
    from undersong_server.federation.exchange import PublicBlocks
    from undersong_server.federation.sums import Federation
    from undersong_server.progress import Silent

    tenth = max(1, parties // 10)
    names = [f"party-{number:04}" for number in range(parties)]
    silent = names[:tenth]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        coordinator = stack.enter_context(serve_coordinator(folder / "home", keepalive_s))
        home, server, metrics = coordinator.home, coordinator.server, coordinator.metrics
        for each in names:
            enrol(folder, home, each)
        shares = [silent, *(names[tenth:][start::processes] for start in range(processes))]
        workers = [stack.enter_context(_ending(_start(folder, share))) for share in shares]
        wait(lambda: len(server.connected) == parties, 60.0 + parties)
        quorum = Quorum(*(parties, default_threshold(parties, 1), tenth, 1), post_quantum=parties <= COMPLETE_UP_TO)
        with closing(home.registry()) as registry:
            identities = {party.name: bytes.fromhex(party.identity) for party in registry.parties()}
        votes = TopQVotes(q=8, candidates=CANDIDATES, labels=2)
        manifest = Manifest(
            run="native",
            task={"name": "native", "description": "a note", "labels": ["a", "b"]},
            method="wasp",
            embedder=EMBEDDER,
            roster=tuple(Member(each, identities[each]) for each in names),
            plan=plan_sums([SumRequest("votes", votes)], Privacy(8.0, 1e-5), quorum),
        )
        journal = Journal(folder / "journal.sqlite")
        stack.callback(journal.close)
        blocks = PublicBlocks(journal)
        federation = Federation(coordinator.transport, manifest, journal, Silent(), blocks=blocks, timeout_s=patience_s)
        federation.agree()
        rng = np.random.default_rng(1)
        vectors = rng.normal(size=(CANDIDATES, DIMENSION))
        embeddings = publishable(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        segment = Segment(blocks.add(encode_embeddings(embeddings, rng.integers(0, 2, CANDIDATES))))
        workers[0].terminate()
        workers[0].wait(20)
        survivor_count = parties - tenth
        wait(lambda: len(server.connected) == survivor_count, 60.0)

        idle = (time.process_time(), _cpu_s(workers[1:]))
        time.sleep(IDLE_S)
        coordinator_idle_s, party_idle_s = time.process_time() - idle[0], _cpu_s(workers[1:]) - idle[1]

        def bytes_of(direction: str) -> float:
            return float(metrics.registry.get_sample_value(f"undersong_{direction}_bytes_total") or 0.0)

        def read_figures() -> tuple[float, ...]:
            cpu_s = time.process_time(), _cpu_s(workers[1:])
            return time.perf_counter(), *cpu_s, bytes_of("sent"), bytes_of("received")

        start_figures = read_figures()
        opened = federation.private_sum("votes", [Input("candidates", (segment,))])
        wall, own, theirs, down, up = (end - begin for begin, end in zip(start_figures, read_figures(), strict=True))
        return {
            **{"parties": parties, "survivors": len(opened.survivors), "post_quantum": quorum.post_quantum},
            **{
                "sum_s": wall,
                "patience_s": patience_s,
                "coordinator_cpu_s": own,
                "party_cpu_s": theirs / survivor_count,
            },
            **{"coordinator_idle": coordinator_idle_s / IDLE_S, "party_idle": party_idle_s / survivor_count / IDLE_S},
            "coordinator_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **{
                "bytes_down": down / survivor_count,
                "bytes_up": up / survivor_count,
                "load_average": os.getloadavg()[0],
            },
        }


def _start(folder: Path, names: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.native", "--host", str(folder), *names]
    with (folder / f"{names[0]}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)


@contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends ``process`` when the context ends."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(20)


def _cpu_s(processes: list[subprocess.Popen[bytes]]) -> float:
    return sum(cpu_seconds(each.pid) for each in processes)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parties", type=int, nargs="*", default=SIZES)
    parser.add_argument("--processes", type=int, default=4, help="in which the parties that answer live")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds that a stage may take")
    parser.add_argument(
        "--keepalive",
        type=float,
        default=defaults.KEEPALIVE_S,
        metavar="S",
        help="silence on a stream after which a side asks, as `undersong coordinator serve --keepalive`",
    )
    parser.add_argument("--quick", action="store_true", help="twenty parties")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    parser.add_argument("--host", nargs="+", metavar=("FOLDER", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        host_parties(Path(options.host[0]), options.host[1:])
        return 0
    only_tls_1_3()
    sizes = (20,) if options.quick else options.parties
    figures = [measure(parties, options.processes, options.patience, options.keepalive) for parties in sizes]
    if options.json:
        print(json.dumps(figures))
        return 0
    for row in figures:
        print(", ".join(f"{name} {value:,.4g}" if value is not True else f"{name} on" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
