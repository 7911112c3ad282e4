"""One party with 100 000 notes: how much memory it needs, and that a later round computes on new candidates only.

    python -m benchmarks.party_memory [--quick] [--words N] [--made-up-embeddings] [--folder DIR] [--json]

A party is made by the hospital's own commands (``init``, ``data add``, ``budget set``, ``policy set``) and assembled as
the daemon does, but that its vectors are computed in this process too; its records are embedded by the packaged model
through the encrypted cache, and a coordinator of one party in the same process opens nearest and
furthest votes over five rounds of 1 200 new candidates each, then once more with none. What is measured is the whole
process, so the coordinator's own memory counts too and the figure is an upper bound.

Notes have 20 words, or ``--words``. ``data add`` embeds them: 100 000 short notes take some ten minutes on two cores.
``--folder`` keeps them, so that a second invocation (or one that was stopped) finds what is there; what was found and
not computed is stated in the figures. ``--made-up-embeddings`` has the model compute the first 64 batches only, so that
its memory counts, and puts random vectors in place of its others; texts are cut into tokens and windows, and windows
are pooled, as ever. The figures say so. ``--quick`` takes 5 000 notes.

JSON: ``records``, ``words``, ``embedded_now``, ``add_s`` (all commands of the hospital), ``read_s`` (the vectors from
the cache), ``resident_after_embedding_bytes``, ``resident_peak_bytes`` (target below 1.5e9), ``round_seconds``,
``repeat_s`` (no new candidates), ``later_over_first`` (the slowest later round over the first; a party that began anew
each round would need 5).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from undersong_common.arrays import Float32
from undersong_common.models import embedders
from undersong_common.models.embedding import Embedder
from undersong_common.models.encoders import Encoder, Tokens

TARGET_BYTES = 1.5e9
ROUNDS = 5
NEW_PER_ROUND = 1200
DIMENSION = 384
LABELS = ("cardiac", "respiratory", "injury")
LARGEST_RATIO = 3.0
REAL_BATCHES = 64  # batches that the model computes really under --made-up-embeddings

WORDS = {
    "who": ["a farmer", "a child of six", "an elderly woman", "a nurse", "a cyclist", "a fisherman", "a student"],
    "what": ["chest pain", "a cough", "a cut hand", "shortness of breath", "a swollen ankle", "palpitations"],
    "when": ["since this morning", "for three days", "after a fall", "at rest", "on exertion", "during the night"],
    "more": ["no fever", "a known allergy to penicillin", "pale and sweating", "calm", "walked in alone", "in pain"],
}


def write_notes(path: Path, records: int, words: int) -> None:
    """Writes ``records`` different invented notes of about ``words`` words to ``path``."""
    generator = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(records):
            text = f"note {number} of this ward, pulse {generator.randint(50, 140)}"
            while text.count(" ") + 1 < words:
                who, what, when, more = (generator.choice(WORDS[part]) for part in WORDS)
                text += f"; {who}, {what} {when}; {more}"
            row = {"text": text, "label": LABELS[number % len(LABELS)], "patient": f"p{number // 2}"}
            file.write(json.dumps(row) + "\n")


def make_home(folder: Path, records: int, words: int) -> Path:
    """Makes a party in ``folder`` by the hospital's commands, unless it is there already."""
    from typer.testing import CliRunner

    from undersong_client.cli.app import app

    home, notes = folder / "party", folder / "notes.jsonl"
    if (home / "settings.json").exists():
        return home

    def hospital(*arguments: object) -> None:
        command = [*map(str, arguments), "--home", str(home)]
        completed = CliRunner().invoke(app, command, standalone_mode=False)
        if completed.exception is not None:
            raise RuntimeError(f"{arguments}: {completed.exception!r}")

    write_notes(notes, records, words)
    hospital("init", "ward")
    hospital("budget", "set", "--epsilon", 1e6, "--delta", "1e-6")
    hospital("policy", "set", "--question", "all", "--approval", "standing")
    hospital("policy", "set", "--minimum-parties", 1)
    hospital("data", "add", notes, "--label-field", "label", "--user-field", "patient")
    return home


class RandomVectors:
    """An encoder that computes its first batches only, and whose other vectors are random."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._computed = 0
        self.window, self.special = encoder.window, encoder.special

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encoder.ids(texts)

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        return self._encoder.batches(lengths)

    def vectors(self, windows: Sequence[Tokens]) -> Float32:
        self._computed += 1
        if self._computed <= REAL_BATCHES:
            return self._encoder.vectors(windows)
        seed = sum(int(window.sum()) for window in windows)
        return np.random.default_rng(seed).normal(size=(len(windows), DIMENSION)).astype(np.float32)


def measure(folder: Path, records: int, *, words: int, made_up: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """The figures of the module's docstring."""
    embedder = Embedder.load()
    if made_up:
        embedder._encoder = RandomVectors(embedder._load_encoder())
    computed = _count_records(embedder)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    with mock.patch.object(embedders, "load", return_value=embedder):
        return {
            "words": words,
            "made_up_embeddings": "yes" if made_up else "no",
            **_measure_party(folder, records, words, report),
            "embedded_now": sum(computed),
        }


def _measure_party(folder: Path, records: int, words: int, report: Callable[[str], None]) -> dict[str, Any]:
    from undersong_client.answering.assemble import assemble
    from undersong_client.answering.computation import HospitalComputation
    from undersong_client.cli.options import checkpoints_folder
    from undersong_client.home import PartyHome
    from undersong_client.records import snapshot

    start_s = time.perf_counter()
    home = PartyHome(make_home(folder, records, words))
    added_s = time.perf_counter()
    report(f"added in {added_s - start_s:.0f} s, {resident_peak() / 1e9:.2f} GB at most")
    records = snapshot.facts(home).rows
    embedder = embedders.load("packaged")
    computation = HospitalComputation(home, embedder)
    assembled = assemble(
        home, checkpoints=checkpoints_folder(home.path), clock=time.time, embedder=embedder, computation=computation
    )
    computation.warm()
    read_s = time.perf_counter()
    after_embedding = resident_peak()
    rounds, repeat_s = _rounds(folder, assembled.party, records, report)
    return {
        "records": records,
        "add_s": round(added_s - start_s, 1),
        "read_s": round(read_s - added_s, 2),
        "resident_after_embedding_bytes": after_embedding,
        "resident_peak_bytes": resident_peak(),
        "target_bytes": int(TARGET_BYTES),
        "round_seconds": [round(seconds, 3) for seconds in rounds],
        "repeat_s": round(repeat_s, 3),
        "later_over_first": round(max(rounds[1:]) / rounds[0], 2),
    }


def _count_records(embedder: Embedder) -> list[int]:
    """Counts the records of each call of ``embedder`` that reports progress; other calls only try out the model."""
    counts: list[int] = []
    encode = embedder.encode

    def counting(texts: Any, progress: Any = None) -> Any:
        counts.append(len(texts) if progress else 0)
        return encode(texts, progress)

    mock.patch.object(embedder, "encode", counting).start()
    return counts


def _rounds(folder: Path, party: Any, records: int, report: Callable[[str], None]) -> tuple[list[float], float]:
    from undersong.run.simulation import InProcess
    from undersong_common.models.embedding import publishable
    from undersong_protocol.agreement.manifest import Manifest
    from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
    from undersong_protocol.secagg.parameters import Member
    from undersong_protocol.statistics import TopQVotes
    from undersong_protocol.wire.public import Input, Segment, encode_embeddings
    from undersong_server.database.journal import Journal
    from undersong_server.federation.exchange import PublicBlocks
    from undersong_server.federation.sums import Federation
    from undersong_server.progress import Silent

    run = f"memory {os.urandom(4).hex()}"
    sizes = [NEW_PER_ROUND * (number + 1) for number in range(ROUNDS)]
    requests = [
        SumRequest(f"round/{number + 1}", TopQVotes(q=8, candidates=size, labels=len(LABELS)))
        for number, size in enumerate([*sizes, sizes[-1]])
    ]
    privacy = Privacy(8.0, 1e-6, "user", 4, max_records=records)
    manifest = Manifest(
        run=run,
        task={"name": "memory", "description": "a note", "labels": list(LABELS)},
        method="wasp",
        embedder=party.embedder.hex(),
        roster=(Member(party.name, party.public_identity),),
        plan=plan_sums(requests, privacy, Quorum(1, 1, 0, 0)),
    )
    segments: list[Segment] = []
    journal = Journal(folder / f"{run}.sqlite")
    blocks = PublicBlocks(journal)
    federation = Federation(InProcess({party.name: party}), manifest, journal, Silent(), blocks=blocks)
    federation.agree()
    rng = np.random.default_rng(3)
    seconds = []
    for number in range(ROUNDS + 1):
        if number < ROUNDS:
            vectors = rng.normal(size=(NEW_PER_ROUND, DIMENSION))
            embeddings = publishable(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
            block = encode_embeddings(embeddings, rng.integers(0, len(LABELS), NEW_PER_ROUND))
            segments.append(Segment(blocks.add(block)))
        start_s = time.perf_counter()
        federation.private_sum(f"round/{number + 1}", [Input("candidates", tuple(segments))])
        seconds.append(time.perf_counter() - start_s)
        report(f"round {number + 1}: {seconds[-1]:.2f} s, {len(segments) * NEW_PER_ROUND} candidates")
    journal.close()
    return seconds[:ROUNDS], seconds[ROUNDS]


def resident_peak() -> int:
    """Returns the largest resident set of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def forget_peak() -> None:
    """Resets the peak of :func:`resident_peak` to what this process holds now (Linux; elsewhere no effect)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def main(argv: list[str] | None = None) -> int:
    """Print the figures; 0 unless memory or the later rounds miss their target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.party_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 000 notes")
    parser.add_argument("--words", type=int, default=20, help="of a note")
    parser.add_argument("--made-up-embeddings", action="store_true", help="the model computes 64 batches only")
    parser.add_argument("--folder", type=Path, help="keep notes and embeddings here")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    records = 5_000 if options.quick else 100_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        figures = measure(
            folder,
            records,
            words=options.words,
            made_up=options.made_up_embeddings,
            report=lambda said: print(said, file=sys.stderr),
        )
    if options.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key}: {value:,}" if isinstance(value, int) else f"{key}: {value}")
    later = figures["later_over_first"] < LARGEST_RATIO
    return 0 if figures["resident_peak_bytes"] < TARGET_BYTES and later else 1


if __name__ == "__main__":
    sys.exit(main())
