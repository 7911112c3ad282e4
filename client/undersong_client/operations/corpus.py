"""Comparison of a published corpus with the party's own records, those in the data set and those held out.

Everything here is computed in the clear and stays in the building: its figures are not private, and acting on them
(asking for another corpus, naming rows) reveals something about the records.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.answering.computation import Embeddings
from undersong_client.home import PartyHome
from undersong_client.records import snapshot, sources
from undersong_client.records.declared import Declared
from undersong_client.storage import datasets
from undersong_common.embedding import Progress
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import Interval, auc_interval
from undersong_common.overlap import ClosestRecords, Overlap, closest_distances, closest_records, find_overlap
from undersong_common.personal_data import PersonalData, patterns, personal_data
from undersong_common.table import Table, read_table

FEWEST = 20  # records on each side: with fewer an interval says nothing
CORPUS = "synthetic.jsonl"


@dataclass(frozen=True)
class CorpusCheck:
    """A corpus beside the records of one party. Rows are those of the corpus, from 1.

    Attributes:
        texts, records, held_out: how many there are of each.
        copies: overlap of the corpus with the records; ``chance``: with as many records that were held out, or None.
        identifiers: names after a title and long numbers of the corpus, and those that a record has too.
        closest: distances of the texts to the closest record and to the closest one held out; None without the latter.
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
        found = asdict(self)
        return found | {
            "copies": self.copies.as_dict(),
            "chance": None if self.chance is None else self.chance.as_dict(),
        }


def check(
    home: Path, corpus: Path, held_out: Path | None = None, *, progress: Progress = lambda _done, _total: None
) -> CorpusCheck:
    """Compares a corpus with the data set and with the records held out. Sends nothing.

    Args:
        corpus: its file, or the folder of a published run.
        held_out: records of this party in the same form as the data set, in place of those that ``data add --hold-out``
            kept out.
        progress: called with (done, total) texts while they are embedded.

    Raises:
        ConfigurationError: no data set, no corpus, too few records on a side, or one on both.
    """
    opened = PartyHome(home)
    file = corpus / CORPUS if corpus.is_dir() else corpus
    texts = read_table(file, "text", None).texts
    records, others = datasets.load(opened).table, _held_out(opened, held_out)
    if others is not None:
        _check_apart(records, others)
    identifiers = personal_data(texts, records.texts, patterns, "titles and long numbers")
    found = CorpusCheck(
        texts=len(texts),
        records=len(records),
        held_out=0 if others is None else len(others),
        copies=find_overlap(texts, records.texts),
        chance=None if others is None else find_overlap(texts, others.texts),
        identifiers=identifiers,
        closest=None,
        membership=None,
    )
    if others is None:
        return found
    embed = Embeddings(opened, opened.settings.load_embedder(), progress)
    x, inside, outside = (embed(each) for each in (texts, records.texts, others.texts))
    return replace(
        found,
        closest=closest_records(x, inside, outside),
        membership=auc_interval(-closest_distances(inside, x), -closest_distances(outside, x)),
    )


def _held_out(home: PartyHome, file: Path | None) -> Table | None:
    """Returns the records held out; None where there are none."""
    if file is not None:
        declared = replace(Declared.of(home.settings), data=str(file), database="", exclusions="")
        return sources.read(declared).table
    return snapshot.table(home, held_out=True) if home.held_out.exists() else None


def _check_apart(records: Table, others: Table) -> None:
    """Raises ConfigurationError unless enough records are held out, and none of a patient or text of the data set."""
    shared = set(others.texts) & set(records.texts), set(others.users or ()) & set(records.users or ())
    if any(shared):
        raise ConfigurationError(
            f"{len(shared[0])} of the texts and {len(shared[1])} of the patients held out are in the data set too",
            "give records of other patients, whose texts the data set does not have",
            code="not-held-out",
        )
    if min(len(others), len(records)) < FEWEST:
        raise ConfigurationError(
            f"{len(others)} records are held out, and {len(records)} are in the data set",
            f"compare at least {FEWEST} with as many",
            code="too-few-held-out",
        )
