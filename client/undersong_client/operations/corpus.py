"""Comparison of a published corpus with the party's own records, those in the data set and those held out.

The figures have no noise and must stay in the building. Acting on them, for example by asking for another corpus,
reveals something about the records.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.answering.computation import PartyEmbeddings
from undersong_client.home import PartyHome
from undersong_client.records import snapshot, sources
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import Interval, auc_interval
from undersong_common.models.embedding import Progress
from undersong_common.text.overlap import ClosestRecords, Overlap, closest_distances, closest_records, find_overlap
from undersong_common.text.personal_data import PersonalData, count_personal_data, patterns
from undersong_common.text.table import Table, read_table

FEWEST_RECORDS = 20  # records in and outside the data set, at least; with fewer an interval says nothing
CORPUS = "synthetic.jsonl"


@dataclass(frozen=True)
class CorpusCheck:
    """Result of comparing a corpus with one party's records. Rows are those of the corpus, from 1.

    Attributes:
        texts, records, held_out: numbers of corpus texts, of records, and of records held out.
        copies: overlap of the corpus with the records.
        chance: overlap with as many records that were held out, for comparison; None without such records.
        identifiers: names after a title and long numbers in the corpus, and those that a record has too.
        closest: distances of the texts to the closest record and to the closest record held out; None without such.
        membership: area under the ROC curve of the guess that a record took part if a text is close to it; 0.5 says
            nothing. None without records held out.
    """

    texts: int
    records: int
    held_out: int
    copies: Overlap
    chance: Overlap | None
    identifiers: PersonalData
    closest: ClosestRecords | None
    membership: Interval | None

    def to_json(self) -> dict[str, Any]:
        check_json = asdict(self)
        return check_json | {
            "copies": self.copies.as_dict(),
            "chance": None if self.chance is None else self.chance.as_dict(),
        }


def check(
    home: Path, corpus: Path, held_out: Path | None = None, *, progress: Progress = lambda _done, _total: None
) -> CorpusCheck:
    """Compares a corpus with the data set and with the records held out. Sends nothing.

    Args:
        corpus: file of the corpus, or folder of a published run.
        held_out: file of records of this party, in the form of the data set's file, in place of the records that
            ``data add --hold-out`` kept out.
        progress: called with (done, total) texts while they are embedded.

    Raises:
        ConfigurationError: there is no data set or no corpus, records or held-out records are too few, or a record
            is in both.
    """
    party_home = PartyHome(home)
    corpus_file = corpus / CORPUS if corpus.is_dir() else corpus
    corpus_texts = read_table(corpus_file, "text", None).texts
    record_table = datasets.load(party_home).table
    other_records = _held_out(party_home, held_out)
    if other_records is not None:
        _check_apart(record_table, other_records)
    identifier_counts = count_personal_data(corpus_texts, record_table.texts, patterns, "titles and long numbers")
    corpus_check = CorpusCheck(
        texts=len(corpus_texts),
        records=len(record_table),
        held_out=0,
        copies=find_overlap(corpus_texts, record_table.texts),
        chance=None,
        identifiers=identifier_counts,
        closest=None,
        membership=None,
    )
    if other_records is None:
        return corpus_check
    corpus_embeddings = PartyEmbeddings(party_home, party_home.settings.load_embedder(), progress)
    text_vectors, record_vectors, other_vectors = (
        corpus_embeddings(table_texts) for table_texts in (corpus_texts, record_table.texts, other_records.texts)
    )
    return replace(
        corpus_check,
        held_out=len(other_records),
        chance=find_overlap(corpus_texts, other_records.texts),
        closest=closest_records(text_vectors, record_vectors, other_vectors),
        membership=auc_interval(
            -closest_distances(record_vectors, text_vectors), -closest_distances(other_vectors, text_vectors)
        ),
    )


def _held_out(home: PartyHome, file: Path | None) -> Table | None:
    """Returns the records held out; None where there are none."""
    if file is not None:
        held_out_source = replace(home.settings, data=str(file), database="", exclusions="")
        return sources.read(held_out_source).table
    if home.held_out.exists():
        return snapshot.table(home, held_out=True)
    return None


def _check_apart(records: Table, others: Table) -> None:
    """Raises ConfigurationError unless enough records are held out, and none has a patient or text of the data set."""
    shared_values = set(others.texts) & set(records.texts), set(others.users or ()) & set(records.users or ())
    if any(shared_values):
        raise ConfigurationError(
            f"{len(shared_values[0])} of the texts and {len(shared_values[1])} of the patients held out are in the"
            " data set too",
            "give records of other patients, whose texts the data set does not have",
            code="not-held-out",
        )
    if min(len(others), len(records)) < FEWEST_RECORDS:
        raise ConfigurationError(
            f"too few records to compare: {len(others)} are held out, and {len(records)} are in the data set",
            f"hold out at least {FEWEST_RECORDS}, and have at least as many in the data set",
            code="too-few-held-out",
        )
