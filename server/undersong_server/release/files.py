"""The files of a published data set: their names, their formats, and how a finished run writes them and others read.

Files are written whole or not at all. A folder that is read may be anybody's: only regular files of a bounded size are
read, and a key that stands twice in an object is an error.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal
from undersong_common.files import sync_folder
from undersong_common.models.embedding import TextLengths
from undersong_common.printable import counted, joined, printable
from undersong_common.privacy import accounting
from undersong_common.program.configuration import descriptions
from undersong_common.program.machine import fault_of
from undersong_common.version import VERSION
from undersong_protocol.agreement import words
from undersong_protocol.agreement.enrolment import coordinator_fingerprint, party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.participation import Participation
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.agreement.receipt import check_receipt, exposure
from undersong_protocol.secagg.keys import verified
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics.classifier_votes import ScoredComparison
from undersong_protocol.statistics.support import SupportVotes
from undersong_server.authority import Authority
from undersong_server.evaluation.label_mismatches import find_mismatches
from undersong_server.methods.parts import private_score, support
from undersong_server.methods.parts.private_score import PrivateScore
from undersong_server.pool import RESERVED_COLUMNS, Origin, Sample
from undersong_server.release.rounds import RoundFigure, table_of_rounds
from undersong_server.report import archive_card
from undersong_server.report.data import (
    EQUAL_WEIGHTS,
    Figures,
    GeneratorUse,
    PrivacyStatement,
    ReportData,
    are_equal,
)
from undersong_server.report.html import REPORT, render_card, render_html
from undersong_server.report.sum_answers import WORTH, OpenedRun, list_sum_answers
from undersong_server.report.writers import list_writers
from undersong_server.runs.execution import Outcome
from undersong_server.runs.planning import RunPlan
from undersong_server.runs.task import Task

JSONL_NAME = "synthetic.jsonl"
PARQUET_NAME = "synthetic.parquet"
MANIFEST_NAME = "manifest.json"
CARD_NAME = "README.md"
REPORT_NAME = REPORT
SET_ASIDE_NAME = "set-aside.jsonl"  # texts that the records do not support, each with a reason; only if there are any
SEQUENCES_NAME = "sequences.jsonl"  # Only a method that writes from keyphrases has this file.
LINEAGE_NAME = "lineage.jsonl"  # each text's parents and examples
ROUNDS_NAME = "rounds.csv"  # figures by round
DOSSIER_NAME = "dossier.html"  # Only an archive has this file, because it is written after the manifest was signed.
ARCHIVE_NAME = "archive.json"  # signed hashes of an archive's files that are not among the published ones
WORKSPACE_NAME = ".undersong"  # folder beside the files in which a simulation works; it is never published
ADAPTERS_NAME = "adapters.zip"  # Only a method that tunes its generators has this file.
ROWS_NAMES = (JSONL_NAME, PARQUET_NAME)  # the corpus's rows, in one format each
CORPUS_NAMES = (*ROWS_NAMES, SEQUENCES_NAME, ADAPTERS_NAME)
# The manifest holds the hashes of these files.
HASHED_NAMES = (*CORPUS_NAMES, SET_ASIDE_NAME, LINEAGE_NAME, ROUNDS_NAME, CARD_NAME, REPORT_NAME)
# What an archive lacks if texts are left out of its corpus: each of these shows texts or numbers them.
LEFT_OUT_NAMES = (SEQUENCES_NAME, LINEAGE_NAME, REPORT_NAME)
OPTIONAL_NAMES = (SET_ASIDE_NAME,)  # An operator may leave these files out of an archive, which then names them.
# Files that neither show texts of the corpus nor number them: they stay true where texts are left out of it.
FILES_WITHOUT_TEXTS = (ADAPTERS_NAME, SET_ASIDE_NAME, ROUNDS_NAME, MANIFEST_NAME)
PURPOSES = {  # what each published file is for, as card and report say it
    JSONL_NAME: "the corpus",
    PARQUET_NAME: "the same rows",
    SEQUENCES_NAME: "the word lists that the texts were written from",
    ADAPTERS_NAME: "what tuning changed in the generators",
    SET_ASIDE_NAME: "texts that are no part of the corpus, with the same columns and reason, whose words"
    f' "{WORTH}" explains',
    LINEAGE_NAME: "a line for each text of the corpus, and for each text that a prompt for one showed: id, row in the"
    " corpus (from 0) or else text, label, generator, round, operator (what it was asked, as prompt_kind), the ids of"
    " the texts that its prompt showed (parents, good and bad examples; empty if it showed none), and public, the"
    " number of texts shown that no generator of this run wrote",
    ROUNDS_NAME: "a line for each figure of a round: round, figure, of (its generator; empty for the whole corpus),"
    " value and standard_error (of the noise; empty where a figure has none). The figure texts is the number of texts"
    " that a generator gave, weight its share of the orders. Distances are of the texts as they stood after the round,"
    " at most 500 of them, beside as many of the test file: they differ from those of the whole corpus",
    CARD_NAME: "the card, for a hub of data sets",
    REPORT_NAME: "the card's figures with charts and texts to read, without a network",
    MANIFEST_NAME: 'the signed plan, the hospitals\' receipts and the hashes of the other files; "private" says whether'
    " the promise has noise behind it, not that the file is secret",
}
ARCHIVE_PURPOSES = {
    DOSSIER_NAME: "for a privacy officer: what flowed, what it cost, what was checked and what is kept",
    ARCHIVE_NAME: "hashes of the files here that are not as the run wrote them, signed by the makers",
}
# Everything a finished run leaves in its folder for its user.
OUTPUT_NAMES = (*HASHED_NAMES, MANIFEST_NAME)


def _encode(content: bytes | str) -> bytes:
    """Returns a file's bytes: text as UTF-8, a lone surrogate as "?"."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    return content


def write_files(folder: Path, contents: Mapping[str, bytes | str]) -> None:
    """Writes files by name, each whole: all are written and synced beside their places, and only then renamed.

    A full disk changes nothing; a crash between two renames can leave old files beside new ones. Text is written as
    UTF-8, a lone surrogate as "?". Raises ConfigurationError if there is no space, or no right to write.
    """
    temporary_files: list[tuple[str, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for file_name, content in contents.items():
                handle, temporary_path = tempfile.mkstemp(prefix=f".{file_name}.", suffix=".part", dir=folder)
                temporary_files.append((temporary_path, folder / file_name))
                with os.fdopen(handle, "wb") as file:
                    file.write(_encode(content))
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)  # mkstemp gives 0600; the corpus is meant to be shared
                    os.fsync(file.fileno())
            for temporary_path, final_path in temporary_files:
                os.replace(temporary_path, final_path)
        finally:
            for temporary_path, _ in temporary_files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary_path)
        sync_folder(folder)
    except OSError as error:
        write_fault = fault_of(error, folder)
        if isinstance(write_fault, MachineFault):
            raise MachineFault(
                f"{write_fault.problem}: the results were not written, and nothing was changed there",
                f"{write_fault.remedy}, or set output.dir to another disk; started again, the run continues where it"
                " is",
                code=write_fault.code,
            ) from None
        raise ConfigurationError(
            f"{folder}: cannot be written: {error.strerror or error}",
            "set output.dir to a folder that you may write to, and start the run again",
            code="folder-unwritable",
        ) from None


def copy_outputs(source: Path, target: Path) -> list[str]:
    """Copies what a finished run wrote and returns the names of the files, sorted."""
    content_by_name: dict[str, bytes | str] = {
        output_name: (source / output_name).read_bytes()
        for output_name in OUTPUT_NAMES
        if (source / output_name).exists()
    }
    write_files(target, content_by_name)
    return sorted(content_by_name)


LARGEST_BYTES = 256 << 20  # largest manifest.json; a thousand parties and a hundred sums need less
FRESH = "it was changed after the run; get a fresh copy"


def read_text(path: Path) -> str | None:
    """Reads a file's text; None if there is no such file.

    Raises ConfigurationError if it is no regular file (a pipe would never end), too large, or not UTF-8.
    """
    if not path.is_symlink() and not path.exists():
        return None
    if not path.is_file():
        raise ConfigurationError(f"{path}: is no regular file", FRESH)
    if (file_bytes := path.stat().st_size) > LARGEST_BYTES:
        raise ConfigurationError(f"{path}: has {file_bytes} bytes, more than the allowed {LARGEST_BYTES}", FRESH)
    try:
        return path.read_text(encoding="utf-8")
    except ValueError:
        raise ConfigurationError(f"{path}: is not text", FRESH) from None


def rows_file(folder: Path) -> Path:
    """Returns the file with the rows of a published corpus: the first of its formats that is there."""
    return next((folder / name for name in ROWS_NAMES if (folder / name).exists()), folder / JSONL_NAME)


def published_manifest(folder: Path) -> dict[str, Any]:
    """``manifest.json`` of a published data set. Raises ConfigurationError if there is none that can be read."""
    path = folder / MANIFEST_NAME
    manifest_text = read_text(path)
    if manifest_text is None:
        raise ConfigurationError(
            f"{path}: no such file",
            f"add {MANIFEST_NAME}, which holds the hashes of the other files, or name the folder of a finished run",
        )
    try:
        manifest_json = json.loads(manifest_text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: is not JSON", FRESH) from None
    if not isinstance(manifest_json, dict):
        raise ConfigurationError(f"{path}: is not the manifest of a run", FRESH)
    return manifest_json


def charges(folder: Path) -> list[dict[str, Any]]:
    """Returns the entries of every party's signed receipt, each with the party's name, of a published data set.

    Raises ConfigurationError if its manifest holds no such receipts.
    """
    published_json = published_manifest(folder)
    try:
        return [
            {**entry, "party": party}
            for party, receipt in sorted(published_json["receipts"].items())
            for entry in json.loads(receipt["body"], object_pairs_hook=once)["entries"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise ConfigurationError(
            f"{folder / MANIFEST_NAME}: its receipts cannot be read", FRESH, code="receipts-unreadable"
        ) from None


def sha256_of(path: Path) -> str | None:
    """SHA-256 (hex) of a regular file of any size; None if there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a JSON object of its pairs; raises ValueError if a key occurs twice, since readers would differ on it."""
    pairs = list(pairs)
    pair_mapping = dict(pairs)
    if len(pair_mapping) != len(pairs):
        raise ValueError("a key stands twice")
    return pair_mapping


def corpus_files(samples: Sequence[Sample]) -> dict[str, bytes | str]:
    """Returns the corpus as JSON Lines and as Parquet, with its attributes as columns: contents by file name.

    Equal samples give equal bytes.
    """
    attributes = dict.fromkeys(attribute_name for sample in samples for attribute_name, _ in sample.attributes)
    column_names = (*RESERVED_COLUMNS, *attributes)
    sample_rows = [_sample_row(sample, attributes) for sample in samples]
    lines = [json.dumps(dict(zip(column_names, row, strict=True)), ensure_ascii=False) + "\n" for row in sample_rows]
    return {JSONL_NAME: "".join(lines).encode("utf-8"), PARQUET_NAME: _write_parquet(column_names, sample_rows)}


@dataclass(frozen=True)
class LeftOut:
    """Number of texts that a coordinator left out of an archive's corpus, and of all texts that the run wrote."""

    texts: int
    of: int

    @property
    def words(self) -> str:
        return f"{self.texts:,} of {counted(self.of, 'text')}"


def corpus_without(folder: Path, rows: Iterable[int]) -> tuple[dict[str, bytes], LeftOut]:
    """Returns a published corpus without the texts of some rows (numbered from 1), its card, and how many are left out.

    The card counts the remaining texts, and says where it counts them all.
    """
    import pyarrow.parquet

    jsonl_lines = (folder / JSONL_NAME).read_bytes().splitlines(keepends=True)
    left_out = {row - 1 for row in rows} & set(range(len(jsonl_lines)))
    remaining_rows = [row for row in range(len(jsonl_lines)) if row not in left_out]
    parquet_table = pyarrow.parquet.read_table(folder / PARQUET_NAME)
    published_card = (folder / CARD_NAME).read_text(encoding="utf-8")
    card = archive_card.count_anew(published_card, list(map(json.loads, jsonl_lines)), remaining_rows)
    corpus = {
        JSONL_NAME: b"".join(jsonl_lines[row] for row in remaining_rows),
        PARQUET_NAME: _parquet_bytes(parquet_table.take(remaining_rows)),
        CARD_NAME: card.encode("utf-8"),
    }
    return corpus, LeftOut(len(left_out), len(jsonl_lines))


def card_of_archive(card: str, names: Iterable[str]) -> bytes:
    """Returns a card that names exactly the files of an archive.

    Args:
        names: the archive's files.
    """
    purpose_by_name = PURPOSES | ARCHIVE_PURPOSES
    present = {*names, CARD_NAME}
    files = [(name, purpose) for name, purpose in purpose_by_name.items() if name in present]
    listed_card = archive_card.list_files(card, files)
    return archive_card.leave_out_other_files(listed_card, tuple(purpose_by_name), tuple(present)).encode("utf-8")


def _sample_row(sample: Sample, attributes: Iterable[str]) -> tuple[str | int, ...]:
    # A lone surrogate (half an emoji, from a broken answer) is no text and would stop either format.
    clean_text = sample.text.encode("utf-8", "replace").decode("utf-8")
    attribute_values = dict(sample.attributes)  # A method of another package may leave attributes out.
    row_values = (attribute_values.get(attribute_name, "") for attribute_name in attributes)
    return (clean_text, sample.label, sample.generator, sample.round, sample.kind, *row_values)


def _write_parquet(names: Sequence[str], rows: Sequence[tuple[str | int, ...]]) -> bytes:
    import pyarrow

    column_types = [pyarrow.int32() if column_name == "round" else pyarrow.string() for column_name in names]
    if rows:
        columns = list(zip(*rows, strict=True))
    else:
        columns = [()] * len(names)
    column_arrays = [
        pyarrow.array(column, type=column_type) for column, column_type in zip(columns, column_types, strict=True)
    ]
    return _parquet_bytes(pyarrow.Table.from_arrays(column_arrays, names=list(names)))


def _parquet_bytes(table: Any) -> bytes:
    import pyarrow.parquet

    parquet_buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, parquet_buffer, compression="zstd")
    return parquet_buffer.getvalue()


# The signatures of a published data set show that its files are those that its run wrote.
# The parties sign what was asked and spent, never the corpus. The coordinator makes the corpus and signs it. Whoever
# knows the coordinator's fingerprint, as every hospital does, can tell its data sets from anybody else's. The signature
# also certifies the keys with which the parties have enrolled, since anybody can make keys and call them a hospital's.
# A simulation has no coordinator, and holds the keys of all its parties. Each of them signs what is published, which
# no party of a federation does: the signatures prove that one hand held every key, and that nobody else changed a
# file.

KEY = "coordinator"  # key of manifest.json; everything else in it is signed
ENROLLED = "enrolled"  # key of manifest.json: fingerprints of the roster's parties, as the registry has them
TAG = "undersong published"
SIMULATION = "simulation"  # key of manifest.json: each party's signature (hex) over everything else, by its name
SIMULATION_TAG = "undersong published by a simulation"


@dataclass(frozen=True)
class Signer:
    """A coordinator that publishes: its name, its keys, and the Ed25519 public keys of the parties it has enrolled."""

    name: str
    authority: Authority
    identities: Mapping[str, bytes]

    @property
    def publisher(self) -> tuple[str, str]:
        """Name and fingerprint of the coordinator, for the data set's card."""
        return self.name, self.authority.fingerprint

    def sign(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the contents of ``manifest.json``: ``published``, plain finite JSON values, with the signature."""
        publisher_fields = {
            "name": self.name,
            "ca_certificate": self.authority.certificate_pem.decode("ascii"),
            "signing_key": self.authority.signing_public.hex(),
        }
        member_names = [member["name"] for member in published["manifest"]["roster"]]
        enrolled_fingerprints = {
            party_name: party_fingerprint(party_name, self.identities[party_name])
            for party_name in member_names
            if party_name in self.identities
        }
        published = {**published, ENROLLED: enrolled_fingerprints}
        signature = self.authority.signing_key.sign(_hash_statement(published, publisher_fields))
        return {**published, KEY: {**publisher_fields, "signature": signature.hex()}}


@dataclass(frozen=True)
class SimulationSigner:
    """A simulation that publishes: the keys of all its parties by name."""

    identities: Mapping[str, Ed25519PrivateKey]
    publisher: ClassVar[tuple[str, str]] = ("", "")  # no coordinator

    def sign(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the contents of ``manifest.json``: ``published`` with the signature of every party."""
        statement_hash = tagged_hash(SIMULATION_TAG, canonical_json(published))
        return {
            **published,
            SIMULATION: {
                party_name: signing_key.sign(statement_hash).hex()
                for party_name, signing_key in self.identities.items()
            },
        }


@dataclass(frozen=True)
class PublisherSignature:
    """The publisher of a data set, by a signature that was checked; people compare the fingerprint with a known one."""

    name: str
    fingerprint: str


def read_signature(published: Mapping[str, Any]) -> PublisherSignature | None:
    """Checks the signature of the contents of a ``manifest.json``; None if no coordinator signed it.

    Raises PrivacyRefusal if the signature is not of these contents.
    """
    signed_part = published.get(KEY)
    if signed_part is None:
        return None
    signed_contents = {field_name: field_value for field_name, field_value in published.items() if field_name != KEY}
    try:
        publisher_fields = {
            field_name: str(signed_part[field_name]) for field_name in ("name", "ca_certificate", "signing_key")
        }
        signing_key = bytes.fromhex(publisher_fields["signing_key"])
        verified(
            signing_key, _hash_statement(signed_contents, publisher_fields), bytes.fromhex(signed_part["signature"])
        )
        return PublisherSignature(
            publisher_fields["name"], coordinator_fingerprint(publisher_fields["ca_certificate"], signing_key)
        )
    except (KeyError, TypeError, ValueError, InvalidSignature, ConfigurationError):
        raise PrivacyRefusal(
            "the signature in manifest.json is not of its contents", "get a fresh copy from the coordinator"
        ) from None


ARCHIVE_TAG = "undersong archive"


@dataclass(frozen=True)
class ArchiveStatement:
    """The signed statement ``archive.json`` of an archive on those of its files that are not the published ones.

    Attributes:
        files: SHA-256 (hex) by name of the files that the archive adds, or that replace published ones.
        left_out: number of texts that the archive's corpus lacks; None if the corpus is the published one.
        left_out_files: names of published files that the operator left out of the archive.
    """

    files: Mapping[str, str]
    left_out: LeftOut | None = None
    left_out_files: tuple[str, ...] = ()


def sign_archive(
    signing_key: Ed25519PrivateKey,
    manifest: bytes,
    contents: Mapping[str, bytes | str],
    left_out: LeftOut | None = None,
    left_out_files: Sequence[str] = (),
) -> str:
    """Returns the text of ``archive.json``: hashes of ``contents``, signed for this ``manifest.json`` and no other.

    Args:
        left_out: the texts that the corpus in ``contents`` lacks; None if it is the published one.
        left_out_files: names of published files that the archive lacks by the operator's choice.
    """
    archive_statement = {
        "manifest": _hash_content(manifest),
        "files": {file_name: _hash_content(content) for file_name, content in contents.items()},
        **({} if left_out is None else {"left_out": asdict(left_out)}),
        **({"left_out_files": list(left_out_files)} if left_out_files else {}),
    }
    signature = signing_key.sign(tagged_hash(ARCHIVE_TAG, canonical_json(archive_statement)))
    return json.dumps({**archive_statement, "signature": signature.hex()}, indent=2) + "\n"


def read_archive(folder: Path, published: Mapping[str, Any]) -> ArchiveStatement:
    """Returns what an archive's ``archive.json`` states; an empty statement if there is no such file.

    Raises PrivacyRefusal if it is not signed by the coordinator that signed ``manifest.json``, for that file; raises
    ConfigurationError if it is no text.
    """
    archive_text = read_text(folder / ARCHIVE_NAME)
    if archive_text is None:
        return ArchiveStatement({})
    try:
        archive_json = json.loads(archive_text, object_pairs_hook=once)
        files = {str(file_name): str(digest) for file_name, digest in archive_json["files"].items()}
        archive_statement: dict[str, Any] = {"manifest": sha256_of(folder / MANIFEST_NAME), "files": files}
        left_out = None
        if "left_out" in archive_json:
            left_out = LeftOut(int(archive_json["left_out"]["texts"]), int(archive_json["left_out"]["of"]))
            archive_statement["left_out"] = asdict(left_out)
        if "left_out_files" in archive_json:
            archive_statement["left_out_files"] = list(map(str, archive_json["left_out_files"]))
        left_out_files = tuple(archive_statement.get("left_out_files", ()))
        signing_key = bytes.fromhex(published[KEY]["signing_key"])
        verified(
            signing_key,
            tagged_hash(ARCHIVE_TAG, canonical_json(archive_statement)),
            bytes.fromhex(archive_json["signature"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, InvalidSignature, ConfigurationError):
        raise PrivacyRefusal("the archive is not signed by this coordinator, for this manifest.json", FRESH) from None
    if not set(files) <= {DOSSIER_NAME, CARD_NAME, *(() if left_out is None else (JSONL_NAME, PARQUET_NAME))}:
        raise PrivacyRefusal("archive.json states hashes of files that no archive adds or replaces", FRESH)
    if not set(left_out_files) <= set(OPTIONAL_NAMES):
        raise PrivacyRefusal("archive.json leaves files out that an archive must have", FRESH)
    return ArchiveStatement(files, left_out, left_out_files)


def check_simulation(published: Mapping[str, Any], roster: Sequence[Member]) -> bool:
    """Returns True if every party of the roster signed the contents of a ``manifest.json``, as in a simulation.

    Returns False if it has no such signatures. Raises PrivacyRefusal if it has some, and one is missing or wrong.
    """
    if SIMULATION not in published:
        return False
    signed_contents = {
        field_name: field_value for field_name, field_value in published.items() if field_name != SIMULATION
    }
    try:
        statement_hash = tagged_hash(SIMULATION_TAG, canonical_json(signed_contents))
        signatures = published[SIMULATION]
        for member in roster:
            verified(member.identity, statement_hash, bytes.fromhex(signatures[member.name]))
    except (KeyError, TypeError, ValueError, InvalidSignature, ConfigurationError):
        raise PrivacyRefusal(
            "the parties' signatures in manifest.json are not of its contents", "get a fresh copy from its maker"
        ) from None
    return True


def _hash_statement(published: Mapping[str, Any], publisher: Mapping[str, str]) -> bytes:
    return tagged_hash(TAG, canonical_json(published), canonical_json(publisher))


EQUAL_WEIGHTS_REMARK = (
    f"The generators' last weights are {EQUAL_WEIGHTS}: each is within two standard errors that the noise of the"
    " private sums gives it"
)


def report_data(
    run_plan: RunPlan,
    outcome: Outcome,
    lengths: Callable[[Sequence[str]], TextLengths],
    *,
    created: str,
    insecure_noise: bool = False,
    figures: Figures = ((), ()),
    test_set: str = "",
    earlier: str = "",
) -> ReportData:
    """Collects the values of a finished run that its report, card and final screen show.

    Args:
        lengths: counts the texts that the embedder does not read at once.
        created: date in words; "" if two runs' outputs must be equal byte for byte, which then state no times.
        figures: accuracies and measures of the corpus beside the public test file.
        test_set, earlier: as in :class:`ReportData`.
    """
    task = run_plan.task
    corpus_texts = [sample.text for sample in outcome.samples]
    weights_by_round, weight_errors = _read_weights(outcome)
    accuracy, measures = figures
    usage = tuple(_list_usage(task, outcome))
    task_words = outcome.manifest.task
    privacy = _privacy_statement(run_plan, insecure_noise, outcome)
    opened_run = OpenedRun(
        task.task.labels,
        run_plan.setting.generators,
        outcome.records,
        weights_by_round,
        outcome.opened,
        is_private=privacy.is_private,
        label_shares=getattr(task.options, "label_shares", None),
    )
    return ReportData(
        run=outcome.manifest.run,
        task=task.task.name,
        description=task.task.description,
        publication=task.card_words,
        operator=(str(task_words.get("operator") or ""), str(task_words.get("contact") or "")),
        method=task.method.name,
        labels=task.task.labels,
        generators=run_plan.setting.generators,
        weights=weights_by_round,
        weight_errors=weight_errors,
        samples=outcome.samples,
        privacy=privacy,
        settings=tuple(_describe_options(task, opened_run)),
        seconds=tuple(outcome.seconds.items()) if created else (),
        usage=usage,
        mended_labels=_count_mended_labels(outcome),
        mismatches=find_mismatches(corpus_texts, [sample.label for sample in outcome.samples]),
        writers=tuple(
            list_writers(
                {generator_use.name: generator_use.count.kept for generator_use in usage},
                outcome.samples,
                weights_by_round[-1] if weights_by_round else (),
                outcome.records,
            )
        ),
        refused_labels=tuple(outcome.refused_labels),
        accuracy=accuracy,
        measures=measures,
        seeds=task.evaluation.repeats,
        test_set=test_set,
        test_hash=(sha256_of(task.locate(task.evaluation.test)) or "") if test_set and task.evaluation.test else "",
        test_source=task.evaluation.test_source,
        purpose=task.task.purpose or "",
        earlier=earlier,
        unopened=tuple(_list_unopened(outcome)),
        created=created,
        version=VERSION,
        plan_hash=outcome.manifest.hash.hex(),
        embedder=outcome.manifest.embedder,
        score=_read_score(outcome),
        gain=_read_gain(outcome),
        set_aside=sum(len(set_aside_rows) for _, set_aside_rows in outcome.records.get(support.RECORD, ())),
        aside_starts=tuple(_start_set_aside(outcome)),
        has_unread_score=_has_unread_score(outcome),
        frequent_label=opened_run.frequent_label,
        sum_questions=tuple(
            (planned_sum.name, words.question(planned_sum)) for planned_sum in outcome.manifest.plan.sums
        ),
        sum_answers=list_sum_answers(outcome.manifest.plan.sums, opened_run),
        support_measured=_is_support_told(outcome),
        unpublished_counts=_read_unpublished(outcome),
        participation=participation_of(
            outcome.manifest, {sum_name: sum_facts["survivors"] for sum_name, sum_facts in outcome.sums.items()}
        ),
        questions=words.questions(outcome.manifest.plan),
        steered=tuple(_list_steered(opened_run)),
        remarks=(
            *task.remarks,
            *(str(remark) for _, remark in outcome.records.get("remarks", ())),
            *_warn_readers(outcome, are_equal(weights_by_round[-1] if weights_by_round else (), weight_errors)),
            *filter(None, [lengths(corpus_texts).words]),
        ),
    )


def _read_unpublished(outcome: Outcome) -> dict[str, int]:
    """Returns by reason how many written texts are in none of the published files; {} if none were recorded."""
    return dict(_last_record(outcome, support.UNPUBLISHED) or {})


def _count_mended_labels(outcome: Outcome) -> int | None:
    """Counts the texts whose label is another than they were ordered for; None if the run kept no orders."""
    if not outcome.origins:
        return None
    ordered_labels: dict[str, str] = {}
    for origin in outcome.origins:
        ordered_labels.setdefault(origin.sample.text, origin.sample.label)
    return sum(ordered_labels.get(sample.text, sample.label) != sample.label for sample in outcome.samples)


def _list_usage(task: Task, outcome: Outcome) -> Iterator[GeneratorUse]:
    """Yields the usage of each generator, in the task file's order."""
    for generator in task.generators:
        yield GeneratorUse(
            generator.name, generator.kind, outcome.usage[generator.name], generator.words, generator.source
        )


def _read_weights(outcome: Outcome) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Returns the generators' weights of each round, and the standard errors of the last ones."""
    recorded_weights = outcome.records.get("weights", ())
    noise = dict(outcome.records.get("weights noise", ()))
    if recorded_weights:
        weight_errors = tuple(noise.get(recorded_weights[-1][0], ()))
    else:
        weight_errors = ()
    return tuple(tuple(round_weights) for _, round_weights in recorded_weights), weight_errors


def _warn_readers(outcome: Outcome, has_equal_weights: bool) -> Iterator[str]:
    """Yields sentences on weights that tell nothing, and on labels without a text."""
    if has_equal_weights:
        yield EQUAL_WEIGHTS_REMARK
    for label in outcome.refused_labels:
        yield f"The label {label} has no text: every order of it was refused for its content."


def _describe_options(task: Task, run: OpenedRun) -> Iterator[tuple[str, str]]:
    """Yields the name of each option that is on, and its value with the first sentence of its description."""
    description_by_option = descriptions(type(task.options))
    for name, value in task.options.model_dump().items():
        if name == "label_shares" and not task.task.labels:
            continue
        if value is False or value is None or value in ("", (), []):  # An option that is off had no effect.
            continue
        value_words = str(value)
        if value is True:
            value_words = "yes"
        # A description of several forms has "; or " between them; this value has the first form.
        description = description_by_option.get(name, "").partition(". ")[0]
        first_sentence = description.partition("; or ")[0].rstrip(".")
        if name == "label_shares" and run.has_equal_label_shares and not run.sets_label_shares:
            first_sentence = "in this run, equally many texts of each label were ordered"
        if first_sentence:
            value_words = f"{value_words} ({first_sentence})"
        yield name.replace("_", " "), value_words


def participation_of(manifest: Manifest, survivors: Mapping[str, Sequence[str]]) -> Participation:
    """Returns who is in which opened sum. ``survivors``: the hospitals by the name of each opened sum."""
    opened_names = [planned_sum.name for planned_sum in manifest.plan.sums if planned_sum.name in survivors]
    return Participation(
        tuple(member.name for member in manifest.roster),
        tuple((name, tuple(survivors[name])) for name in opened_names),
        manifest.full_names,
    )


def _last_record(outcome: Outcome, name: str) -> Any:
    """Returns what the run recorded last under a name; None if it recorded nothing."""
    record_entries = outcome.records.get(name, ())
    return record_entries[-1][1] if record_entries else None


def _read_score(outcome: Outcome) -> PrivateScore | None:
    recorded_score = _last_record(outcome, private_score.RECORD)
    if recorded_score is None:
        return None
    return PrivateScore.from_json(recorded_score)


SHOWN_ASIDE = 3  # number of texts set aside of which card and report show the first words
SHOWN_LENGTH = 60  # characters that are shown of a text set aside


def _start_set_aside(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yields generator and first words of the first text that was set aside for each reason and generator."""
    first_texts: dict[tuple[str, str], str] = {}
    for _, aside_rows in outcome.records.get(support.RECORD, ()):
        for row in aside_rows:
            first_texts.setdefault((row[2], row[-1]), row[0])
    for (generator, _), text in list(first_texts.items())[:SHOWN_ASIDE]:
        yield generator, printable(text, SHOWN_LENGTH)


def _has_unread_score(outcome: Outcome) -> bool:
    """True if the sum that measures the score was opened, but over hospitals whose records were never counted."""
    opened_statistics = {
        planned_sum.statistic for planned_sum in outcome.manifest.plan.sums if planned_sum.name in outcome.sums
    }
    return private_score.RECORD not in outcome.records and ScoredComparison.name in opened_statistics


def _list_steered(run: OpenedRun) -> Iterator[str]:
    """Yields what the private sums decided, as far as the run recorded it."""
    records = run.records
    if run.steers_label_shares:
        yield "how many texts of each label were ordered"
    if any(tuple(row) != tuple(run.weights[0]) for row in run.weights):
        yield "how many texts each generator was asked for"
    if any(recorded_rows for _, recorded_rows in records.get(support.RECORD, ())):
        yield "which texts were set aside"
    if any(
        verdict_facts["taken"] and verdict_facts.get("compared", True)
        for _, verdict_facts in records.get("verdict", ())
    ):
        yield "which texts and labels are published"


def _is_support_told(outcome: Outcome) -> bool:
    """Returns True if the vote on the generators was opened, and the noise leaves one with more than no votes.

    Otherwise no generator is judged.
    """
    opened_sums = (planned_sum for planned_sum in outcome.manifest.plan.sums if planned_sum.name in outcome.sums)
    if not any(planned.statistic == SupportVotes.name for planned in opened_sums):
        return False
    recorded_support = _last_record(outcome, "support")
    return recorded_support is not None and bool(support.Support.from_json(recorded_support).supported.any())


def _read_gain(outcome: Outcome) -> tuple[float, float] | None:
    """Reads what the records' choice gained over all texts; None if the two were the same or were not compared."""
    verdict_facts = _last_record(outcome, "verdict")
    if verdict_facts is None or not verdict_facts.get("compared", True):  # An earlier version has no key "compared".
        return None
    return verdict_facts["gain"], verdict_facts["error"]


def publish(
    folder: Path,
    outcome: Outcome,
    report: ReportData,
    *,
    signer: Signer | SimulationSigner,
    rounds: Sequence[RoundFigure] = (),
) -> None:
    """Writes every output file of a run into ``folder``, all or none.

    Of a party's ledger the manifest holds only what the party's receipt states. The ledger's first entry and its other
    runs describe the party's data set and stay unpublished, in a simulation too.

    Args:
        signer: the coordinator, or the simulation, that signs it.
        rounds: figures by round.
    """
    manifest_fields = _make_manifest(outcome, report)
    report = replace(
        report,
        publisher=signer.publisher,
        simulated=isinstance(signer, SimulationSigner),
        statement_hash=_hash_content(_statement_text(manifest_fields)),
    )
    content_by_name = {
        **corpus_files(outcome.samples),
        **_set_aside_file(outcome),
        **_sequence_file(outcome),
        **_adapter_file(outcome),
        LINEAGE_NAME: lineage(outcome.samples, outcome.origins),
        ROUNDS_NAME: table_of_rounds(rounds),
    }
    published_names = {*content_by_name, CARD_NAME, REPORT_NAME, MANIFEST_NAME}
    report = replace(report, files=tuple((name, says) for name, says in PURPOSES.items() if name in published_names))
    content_by_name |= {
        CARD_NAME: render_card(report),
        REPORT_NAME: render_html(report),
    }
    complete_manifest = {
        **manifest_fields,
        "files": {name: _hash_content(content) for name, content in content_by_name.items()},
    }
    manifest = json.dumps(signer.sign(complete_manifest), indent=2, ensure_ascii=False) + "\n"
    write_files(folder, {**content_by_name, MANIFEST_NAME: manifest})


def _statement_text(statement: Mapping[str, Any]) -> str:
    """The text of ``manifest.json`` up to the hashes of the files, which report.html compares with its own figures."""
    return json.dumps(statement, indent=2, ensure_ascii=False).removesuffix("\n}") + ","


def _make_manifest(outcome: Outcome, report: ReportData) -> dict[str, Any]:
    """Returns what ``undersong verify`` needs, and nothing that describes a party's data."""
    return {
        "private": report.privacy.is_private,
        "manifest": json.loads(outcome.manifest.to_bytes()),
        "manifest_hash": outcome.manifest.hash.hex(),
        "signatures": {party: signature.hex() for party, signature in sorted(outcome.signatures.items())},
        "sums": dict(outcome.sums),
        "receipts": {
            party: {"body": receipt.body.decode("utf-8"), "signature": receipt.signature.hex()}
            for party, receipt in sorted(outcome.receipts.items())
        },
    }


def _list_unopened(outcome: Outcome) -> Iterator[str]:
    """Yields a sentence on each hospital whose receipt charges sums that were opened without it."""
    for party, signed_receipt in sorted(outcome.receipts.items()):
        receipt = check_receipt(outcome.manifest, party, signed_receipt.body, signed_receipt.signature)
        sum_names = dict.fromkeys(
            charge.query
            for charge in receipt.left
            if charge.query in outcome.sums and party not in outcome.sums[charge.query]["survivors"]
        )
        if sum_names:
            quoted_names = joined([f"'{printable(name, 60)}'" for name in sum_names])
            verb = "was" if len(sum_names) == 1 else "were"
            yield (
                f"The receipt of {printable(party, 120)} also charges {quoted_names}, which {verb} opened without"
                " it: its numbers may have left before it withdrew."
            )


def _hash_content(content: bytes | str) -> str:
    return hashlib.sha256(_encode(content)).hexdigest()


def guess_at_all_hospitals(plan: Plan) -> float | None:
    """Returns the largest chance of a right guess about one patient with records at each of a plan's hospitals.

    None for other units than a patient, for a single hospital, and where nothing is promised.
    """
    is_private = math.isfinite(plan.privacy.epsilon) and bool(plan.sums)
    if not is_private or plan.privacy.unit != "user" or plan.quorum.parties < 2:
        return None
    return accounting.best_guess_of_several(plan.charged_events(), plan.quorum.parties)


def _privacy_statement(run_plan: RunPlan, insecure_noise: bool, outcome: Outcome) -> PrivacyStatement:
    plan = run_plan.plan
    is_private = math.isfinite(plan.privacy.epsilon) and bool(plan.sums)
    epsilon_alone = plan.epsilon_if_all_others_collude() if is_private else None
    receipts = {
        party: check_receipt(outcome.manifest, party, receipt.body, receipt.signature)
        for party, receipt in outcome.receipts.items()
    }
    epsilon_ran, guess_ran = exposure(outcome.manifest, receipts) if is_private else (None, None)
    return PrivacyStatement(
        plan.privacy,
        plan.quorum,
        tuple(plan.epsilon_after(sum_count) for sum_count in range(1, len(plan.sums) + 1)),
        epsilon_alone,
        insecure_noise,
        accounting.best_guess(plan.charged_events()) if is_private else None,
        accounting.best_guess(plan.alone_events())
        if epsilon_alone is not None and math.isfinite(epsilon_alone)
        else None,
        epsilon_against_all_as_it_ran=epsilon_ran,
        best_guess_against_all_as_it_ran=guess_ran,
        best_guess_at_all_hospitals=guess_at_all_hospitals(plan),
    )


def _set_aside_file(outcome: Outcome) -> dict[str, bytes | str]:
    """The texts that a method set aside, as rows of the corpus with a reason; no file if there are none."""
    aside_rows = [row for _, recorded_rows in outcome.records.get(support.RECORD, ()) for row in recorded_rows]
    if not aside_rows:
        return {}
    column_names = (*RESERVED_COLUMNS, "reason")
    json_lines = (json.dumps(dict(zip(column_names, row, strict=True)), ensure_ascii=False) for row in aside_rows)
    return {SET_ASIDE_NAME: "".join(f"{line}\n" for line in json_lines)}


def _sequence_file(outcome: Outcome) -> dict[str, bytes | str]:
    """The keyphrase sequences that a method recorded, one per line with its label; no file if there are none."""
    sequence_rows = [row for _, recorded_rows in outcome.records.get("sequences", ()) for row in recorded_rows]
    if not sequence_rows:
        return {}
    json_lines = (
        json.dumps({"label": label, "terms": list(terms)}, ensure_ascii=False) for label, terms in sequence_rows
    )
    return {SEQUENCES_NAME: "".join(f"{line}\n" for line in json_lines)}


def lineage(corpus: Sequence[Sample], origins: Sequence[Origin]) -> str:
    """Returns a line for each text of the corpus and, transitively, for each text that a request for one showed.

    A line has the text's "id", its "row" in the corpus (from 0) or its "text" where it is not in it, who wrote it in
    which round by which operator, the ids of its parents and of the good and bad examples, and how many texts the
    request showed that no generator of the run wrote.
    """
    first_origins: dict[str, Origin] = {}
    for origin in origins:
        first_origins.setdefault(origin.sample.text, origin)
    row_by_text = {sample.text: row for row, sample in enumerate(corpus)}
    included_texts = dict.fromkeys(row_by_text)
    unread_texts = list(row_by_text)
    while unread_texts:
        unread_text = unread_texts.pop()
        if unread_text in first_origins:
            examples = first_origins[unread_text].shown
        else:
            examples = ()
        further_texts = [text for text in examples if text in first_origins and text not in included_texts]
        included_texts |= dict.fromkeys(further_texts)
        unread_texts += further_texts
    corpus_origins = {sample.text: Origin(sample) for sample in corpus if sample.text not in first_origins}
    included_origins = {
        text: origin for text, origin in (first_origins | corpus_origins).items() if text in included_texts
    }
    id_by_text = {text: number for number, text in enumerate(included_origins)}
    lineage_lines = []
    for unread_text, origin in included_origins.items():
        if unread_text in row_by_text:
            sample = corpus[row_by_text[unread_text]]
            place_fields: dict[str, Any] = {"row": row_by_text[unread_text]}
        else:
            sample = origin.sample
            place_fields = {"text": unread_text.encode("utf-8", "replace").decode("utf-8")}
        ids = {
            part_name: [id_by_text[example] for example in part_texts if example in id_by_text]
            for part_name, part_texts in (("parents", origin.parents), ("good", origin.good), ("bad", origin.bad))
        }
        lineage_line = {
            "id": id_by_text[unread_text],
            **place_fields,
            "label": sample.label,
            "generator": sample.generator,
            "round": sample.round,
            "operator": sample.kind,
            **ids,
            "public": sum(example not in id_by_text for example in origin.shown),
        }
        lineage_lines.append(json.dumps(lineage_line, ensure_ascii=False) + "\n")
    return "".join(lineage_lines)


def _adapter_file(outcome: Outcome) -> dict[str, bytes | str]:
    """A folder of each tuned generator's adapter, as peft reads it, in one file; equal adapters give equal bytes."""
    if not outcome.adapters:
        return {}
    zip_buffer = io.BytesIO()
    with zipfile.ZipFile(zip_buffer, "w") as archive:
        for adapter_name, adapter_files in sorted(outcome.adapters.items()):
            for file, file_bytes in sorted(adapter_files.items()):
                archive.writestr(zipfile.ZipInfo(f"{adapter_name}/{file}"), file_bytes)
    return {ADAPTERS_NAME: zip_buffer.getvalue()}
