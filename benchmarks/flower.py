"""One private sum over Flower's simulation engine, at 50, 200 and 1 000 parties.

    python -m benchmarks.flower [--quick] [--json] [--parties N ...] [--actors N] [--records 20] [--in-process]

``--in-process`` has all parties in this process, without Flower. Every party has 20 records (the clinic example's 600
notes, dealt again and again and embedded before the measurement: a record's embedding is made once in its life), real
keys, masks, noise, an encrypted journal and a ledger. One vote over
6 000 public candidates, nearest and furthest: 12 000 coordinates. A tenth of the parties fall silent, spread evenly
over the stages (sharing, masking, consistency, unmasking; above 200 parties revealing nonces too); as many may collude.
JSON: a list with one object a size: ``parties``, ``survivors``, ``seconds`` (``find``: the nodes introduce themselves,
the engine's start included, ``agree``: manifest and adverts, ``sum``: the private sum, ``all``), ``messages`` (to all
parties together, ``messages_a_party`` to one that stays), ``cpu_seconds`` (this process and Ray's; what the seconds
would be bound by on a machine of its own is this over its cores), ``peak_memory_bytes`` (proportional set size of this
process and Ray's together), ``largest_error`` (of the opened sum against the survivors' exact votes, in standard
deviations of the noise in it), ``load_average`` (others' work lengthens every figure in seconds). As in
``benchmarks.native``, of the sum alone: ``coordinator_cpu_s`` (this process, in which Flower's engine hands messages
on), ``party_cpu_s`` (Ray's processes, over the parties in the sum), ``coordinator_peak_bytes`` (this process's largest
resident set, with the model that embedded the notes), ``bytes_down``, ``bytes_up`` (per party in the sum).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federation import cpu_seconds
from tests.doubles.lossy import Lossy, LossyBatches
from tests.doubles.votes import top_q_votes
from undersong_common.models.embedding import (
    CachedEmbedder,
    Embedder,
    EmbeddingCache,
    MemoryCache,
    PublicFileCache,
    publishable,
)
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.graph import COMPLETE_UP_TO
from undersong_protocol.secagg.parameters import Member, default_threshold
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, encode_embeddings
from undersong_server.database.journal import Journal
from undersong_server.defaults import public_cache_path
from undersong_server.federation.agreement import introduce
from undersong_server.federation.exchange import Lazily, PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent
from undersong_server.runs.task import load

ROOT = Path(__file__).resolve().parents[1]
CLINIC = ROOT / "examples" / "clinic"
SIZES = (50, 200, 1000)
RECORDS = 20
CANDIDATES = 6000
DIMENSION = 384
GRAPH_ABOVE = 200  # parties, above which a random graph replaces the complete one
TARGET_S = 600.0
TARGET_BYTES = 8e9


class Memory(threading.Thread):
    """Watches this process and its descendants (Linux): the largest proportional set size, and the time they used."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._seconds: dict[int, float] = {}
        self._ended = threading.Event()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._seconds.values())

    def run(self) -> None:
        while not self._ended.wait(1.0):
            self.look()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def look(self) -> None:
        total = 0
        for pid in _family(os.getpid()):
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                self._seconds[pid] = cpu_seconds(pid)
            except OSError:
                continue  # the process has ended meanwhile
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
        self.peak_bytes = max(self.peak_bytes, total)

    def others_cpu_seconds(self) -> float:
        """Returns the processor seconds of every process but this one, up to now."""
        self.look()
        return self.cpu_seconds - self._seconds.get(os.getpid(), 0.0)


class Counted:
    """Flower's transport, counting the bytes that it carries."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.down = self.up = 0

    @property
    def messages(self) -> int:
        return int(self._transport.messages)

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        found: Mapping[str, bytes] = self._transport.exchange(
            Lazily(requests, lambda name: self._sent([requests[name]])[0]), timeout_s=timeout_s
        )
        self.up += sum(map(len, found.values()))
        return found

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        found: Mapping[str, Sequence[bytes]] = self._transport.exchange_batches(
            Lazily(requests, lambda name: self._sent(requests[name])), timeout_s=timeout_s
        )
        self.up += sum(len(reply) for replies in found.values() for reply in replies)
        return found

    def _sent(self, batch: Sequence[bytes]) -> Sequence[bytes]:
        self.down += sum(map(len, batch))
        return batch


class Reporting(Silent):
    """A display that passes the run's messages to the benchmark's ``report``."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def say(self, message: str) -> None:
        self._report(message)

    def update(self, phase: str, done: int, total: int) -> None:
        self._report(f"{time.strftime('%H:%M:%S')} {phase}: stage {done}")


def _family(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(path.name))
    descendants, pending = [], [root]
    while pending:
        pid = pending.pop()
        descendants.append(pid)
        pending += parents.get(pid, [])
    return descendants


def measure(
    parties: int,
    actors: int | None = None,
    report: Callable[[str], None] = lambda _words: None,
    *,
    records: int = RECORDS,
    in_process: bool = False,
) -> dict[str, Any]:
    """The figures of one size; see the module's docstring."""
    from undersong.run.flower import over_flower
    from undersong.run.records import private_tables
    from undersong.run.workspace import SimulatedParties, Workspace

    watch = Memory()
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = load(_task(folder, parties, records), [])
        workspace = Workspace(folder / "run", task, {}, fresh=False)
        tables = private_tables(task, 0)
        simulated_parties = SimulatedParties(task, workspace.state, 0, None)
        simulated_parties.draw_keys(tables)
        embedder = Embedder.load()
        cache = MemoryCache() if in_process else simulated_parties.shared_cache()
        cached = CachedEmbedder(embedder, _Copied(PublicFileCache(public_cache_path(os.environ)), cache))
        cached.encode(sorted({text for table in tables.values() for text in table.texts}))
        cached = CachedEmbedder(embedder, cache)
        watch.start()
        start_s = time.perf_counter()
        rng = np.random.default_rng(1)
        vectors = rng.normal(size=(CANDIDATES, DIMENSION))
        embeddings = publishable((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))
        labels = rng.integers(0, len(task.task.labels), CANDIDATES)
        block = encode_embeddings(embeddings, labels)
        statistic = TopQVotes(q=8, candidates=CANDIDATES, labels=len(task.task.labels))
        tenth = parties // 10
        quorum = Quorum(
            parties, default_threshold(parties, tenth), tenth, tenth, post_quantum=parties <= COMPLETE_UP_TO
        )
        plan = plan_sums([SumRequest("votes", statistic)], Privacy(4.0, 1e-5), quorum)
        assert plan.sums[0].dimension == 2 * CANDIDATES
        silent = _silent(list(tables), tenth)
        message_counts: dict[str, int] = {}
        sum_figures: dict[str, float] = {}  # figures of the private sum alone

        def run(carrier: Any) -> Any:
            transport = Counted(carrier)
            seconds["find"] = time.perf_counter() - start_s
            report(f"{parties} parties: the nodes are known after {seconds['find']:.1f} s")
            introduced = introduce(transport, list(tables))
            manifest = Manifest(
                run="benchmark",
                task={"name": "benchmark", "description": "a note", "labels": list(task.task.labels)},
                method="wasp",
                embedder=embedder.fingerprint,
                roster=tuple(Member(party, introduced[party].identity) for party in sorted(introduced)),
                plan=plan,
            )
            journal = Journal(folder / "journal.sqlite")
            blocks = PublicBlocks(journal)
            federation = Federation(transport, manifest, journal, Reporting(report), blocks=blocks, timeout_s=3600.0)
            sum_start_s = time.perf_counter()
            federation.agree()
            seconds["agree"] = time.perf_counter() - sum_start_s
            report(f"{parties} parties: agreed after {seconds['agree']:.1f} s")
            candidates = Input("candidates", (Segment(blocks.add(block)),))
            sum_start_s = time.perf_counter()
            start_figures = time.process_time(), watch.others_cpu_seconds(), transport.down, transport.up
            opened = federation.private_sum("votes", [candidates])
            seconds["sum"] = time.perf_counter() - sum_start_s
            end_figures = time.process_time(), watch.others_cpu_seconds(), transport.down, transport.up
            coordinator_s, parties_s, down, up = (
                end - begin for begin, end in zip(start_figures, end_figures, strict=True)
            )
            survivor_count = len(opened.survivors)
            sum_figures.update(
                coordinator_cpu_s=round(coordinator_s, 2), party_cpu_s=round(parties_s / survivor_count, 3)
            )
            sum_figures.update(bytes_down=down // survivor_count, bytes_up=up // survivor_count)
            report(f"{parties} parties: {len(opened.survivors)} in the sum after {seconds['sum']:.1f} s")
            message_counts["messages"] = transport.messages
            journal.close()
            return opened

        def reachable(party: str, number: int) -> bool:
            return number < silent.get(party, number + 1)

        opened: Any
        if in_process:
            shared: dict[str, Any] = {
                "blocks": MemoryBlocks(),
                "embed": cached.encode,
                "embedder": embedder,
                "clock": time.time,
            }
            opened = run(
                LossyBatches(
                    {n: simulated_parties.party(n, t, **shared) for n, t in tables.items()},
                    reachable,
                    simulated_parties.together,
                )
            )
        else:
            progress = Reporting(report)
            opened = over_flower(
                simulated_parties,
                list(tables),
                lambda carrier: run(Lossy(carrier, reachable)),
                progress=progress,
                actors=actors,
            )
        workspace.journal.close()
        seconds["all"] = time.perf_counter() - start_s
        watch.end()
        error = _largest_error(task, tables, opened, embeddings, labels, cached)
    return {
        "parties": parties,
        "records_a_party": records,
        "coordinates": 2 * CANDIDATES,
        "silent": len(silent),
        "survivors": len(opened.survivors),
        "seconds": {key: round(value, 1) for key, value in seconds.items()},
        "messages": message_counts["messages"],
        "messages_a_party": 3 + (6 if parties > GRAPH_ABOVE else 4),
        **sum_figures,
        "coordinator_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cpu_seconds": round(watch.cpu_seconds, 1),
        "peak_memory_bytes": watch.peak_bytes,
        "largest_error": round(error, 2),
        "actors": actors or len(os.sched_getaffinity(0)),
        "load_average": [round(each, 1) for each in os.getloadavg()],
    }


class _Copied:
    """A public cache that copies each embedding that it returns into the cache that the parties read."""

    def __init__(self, public: PublicFileCache, parties: EmbeddingCache) -> None:
        self._public = public
        self._parties = parties

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        found = self._public.get(keys)
        self._parties.put(found.items())
        return found

    def put(self, rows: Iterable[tuple[bytes, Any]]) -> None:
        kept = list(rows)
        self._public.put(kept)
        self._parties.put(kept)


def _task(folder: Path, parties: int, records: int) -> Path:
    notes = [
        json.loads(line)
        for path in sorted((CLINIC / "data" / "hospitals").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    rng = np.random.default_rng(0)
    note_numbers = rng.integers(0, len(notes), parties * records)
    # Equal records would be dealt to one party, and most parties would have none.
    rows = [notes[row] | {"number": str(number)} for number, row in enumerate(note_numbers)]
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = (CLINIC / "task.toml").read_text(encoding="utf-8")
    head, _, tail = text.partition("[data]")
    privacy_section = tail[tail.index("[privacy]") : tail.index("[evaluation]")].replace('"data/', f'"{CLINIC}/data/')
    privacy_section = privacy_section.replace("parties = 5", f"parties = {parties}\nalpha = inf").replace(
        'unit = "user"', 'unit = "sample"'
    )
    privacy_section = "\n".join(
        line for line in privacy_section.splitlines() if not line.startswith(("max_per_user", "user_contribution"))
    )
    data_section = f'[data]\npath = "{folder}/notes.jsonl"\ntext = "text"\nlabel = "label"\nuser = "number"\n\n'
    (folder / "task.toml").write_text(head + data_section + privacy_section, encoding="utf-8")
    return folder / "task.toml"


def _silent(names: list[str], count: int) -> dict[str, int]:
    """Draws ``count`` parties that fall silent; returns by name the number of the first message that each one misses.

    Message 0 introduces, 1 proposes, 2 brings signatures and asks for adverts. On a random graph 3 asks for nonces and,
    since somebody does not reveal, 4 asks anew; then come shares, masks, consistency and unmasking.
    """
    silent_rows = np.random.default_rng(2).permutation(len(names))[:count]
    message_numbers = (3, 5, 6, 7, 8) if len(names) > GRAPH_ABOVE else (3, 4, 5, 6)
    return {names[row]: message_numbers[place % len(message_numbers)] for place, row in enumerate(silent_rows)}


def _largest_error(task: Any, tables: Any, opened: Any, unit: Any, labels: Any, embedder: CachedEmbedder) -> float:
    near = np.zeros(CANDIDATES, dtype=np.int64)
    far = np.zeros_like(near)
    names = {name: number for number, name in enumerate(task.task.labels)}
    for party in opened.survivors:
        table = tables[party]
        label_numbers = np.array([names[label] for label in table.labels])
        near_counts, far_counts = top_q_votes(embedder.encode(table.texts), label_numbers, unit, labels, 8)
        near += near_counts
        far += far_counts
    exact_votes = np.concatenate([near, far]) * (opened.scale // 128)
    return float(np.abs(opened.values - exact_votes).max() / (opened.sigma * opened.scale))


def _apart(parties: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measures one size in a new process, so that time and memory of the other sizes do not count."""
    command = [sys.executable, "-m", "benchmarks.flower", "--json", "--parties", str(parties)]
    command += ["--records", str(options.records), *(["--in-process"] if options.in_process else [])]
    command += [] if options.actors is None else ["--actors", str(options.actors)]
    completed = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    rows: list[dict[str, Any]] = json.loads(completed.stdout)
    return rows[0]


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        seconds = row["seconds"]
        print(
            f"{row['parties']} parties, {row['survivors']} in the sum: {seconds['sum']} s for the sum,"
            f" {seconds['all']} s in all (CPU {row['cpu_seconds']} s), {row['messages']} messages,"
            f" {row['peak_memory_bytes'] / 1e9:.2f} GB, largest error {row['largest_error']} sigma"
        )


def main(argv: list[str] | None = None) -> int:
    """Print the figures; 0 unless time or memory of issue 8 are exceeded, or the sum is not the survivors'."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50 parties only")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    parser.add_argument("--parties", type=int, nargs="+", help="other sizes")
    parser.add_argument("--actors", type=int, help="Ray's processes (else one a core)")
    parser.add_argument("--records", type=int, default=RECORDS, help="of each party")
    parser.add_argument("--in-process", action="store_true", help="all parties in this process, without Flower")
    options = parser.parse_args(argv)
    sizes = options.parties or (SIZES[:1] if options.quick else SIZES)
    rows = [
        measure(
            *(size, options.actors, lambda words: print(words, file=sys.stderr, flush=True)),
            records=options.records,
            in_process=options.in_process,
        )
        if len(sizes) == 1
        else _apart(size, options)
        for size in sizes
    ]
    print(json.dumps(rows)) if options.json else _print(rows)
    meets_targets = all(
        row["seconds"]["all"] < TARGET_S and row["peak_memory_bytes"] < TARGET_BYTES and row["largest_error"] < 7.0
        for row in rows
    )
    return 0 if meets_targets else 1


if __name__ == "__main__":
    sys.exit(main())
