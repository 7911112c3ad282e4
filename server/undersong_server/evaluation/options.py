"""Options of an evaluation. The commands, the library and the console make them from one declaration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from undersong_common.program.declarations import Option
from undersong_server.defaults import Head

if TYPE_CHECKING:
    from undersong_common.text.table import Table

    Source: TypeAlias = Path | Table  # a file, or a table that has been read with the columns that its purpose needs
else:
    Source = Path  # The command line takes paths only, and must not load what reads tables.


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of one evaluation: the data to compare a corpus with, and the models to train.

    Attributes:
        test: real texts that the task models are judged on and the corpus is compared with; None trains none.
        train_private: the real training texts, for the reference "private data only, no privacy".
        overlap: private texts to search the synthetic texts' words in.
        adapt_to: unlabelled texts like those that the task model will read; it is adapted to them too (Deep CORAL).
        sequences: judges the keyphrase sequences of the run alone as well.
        membership: members and non-members of the private training data, to attack the task model with.
        head: kind of one more task model, beside the panel.
        bert: a local encoder folder, or "packaged", that is fine-tuned beside the panel, with ``epochs``, ``batch``,
            ``learning_rate`` and ``max_tokens`` (undersong_common.models.fine_tuning.FineTuning).
        repeats: seeds, from ``seed`` on, with each of which every model is trained.
        personal_data: counts names, numbers and dates in the synthetic texts, and those that ``overlap`` holds.
        text_field, label_field: columns of the files; no label column for "" and None.
        group_field: column of the test file; task models are judged for each of its groups too.
        embedder: "packaged", a local sentence-transformers folder, or "plug-in:NAME".
        ray: address of a Ray cluster, "" for Ray on this machine, None for this process. The cluster gets the texts.
        public_data: all texts are public, so their embeddings are kept on this disk.
    """

    test: Annotated[Source | None, Option(help="Labelled real texts to test on.")] = None
    train_private: Annotated[Source | None, Option(help="Private training texts: the non-private reference.")] = None
    overlap: Annotated[Source | None, Option(help="A private file to search the synthetic texts for.")] = None
    adapt_to: Annotated[
        Source | None,
        Option(
            help="Unlabelled texts of a client: adapts the task model to them (Deep CORAL).",
            name="--adapt",
        ),
    ] = None
    sequences: Annotated[bool, Option(help="Judge the run's keyphrase sequences alone, without any model.")] = False
    membership: Annotated[
        tuple[Source, Source] | None,
        Option(
            help="Real texts, private or not: attacks the task model with them.",
            metavar="MEMBERS NONMEMBERS",
        ),
    ] = None
    head: Annotated[Head | None, Option(help="Head of one more task model, beside the panel.")] = None
    bert: Annotated[Path | None, Option(help='A local encoder folder to fine-tune as well, or "packaged".')] = None
    epochs: Annotated[int, Option(help="Of --bert, at most.", min=1)] = 4
    batch: Annotated[int, Option(help="Texts of a step of --bert.", min=1)] = 32
    learning_rate: Annotated[float, Option(help="Of --bert.", min=0.0)] = 3e-5
    max_tokens: Annotated[int, Option(help="Tokens of a text that --bert reads.", min=1)] = 256
    repeats: Annotated[int, Option(help="Seeds with each of which every model is trained; gives intervals.", min=1)] = 1
    personal_data: Annotated[
        bool, Option(help="Count names, numbers and dates, and those that the --overlap file holds too.")
    ] = False
    text_field: Annotated[str, Option(help="Text column of the files.")] = "text"
    label_field: Annotated[str | None, Option(help='Label column of the files; "" if they have none.', type=str)] = (
        "label"
    )
    group_field: Annotated[
        str | None,
        Option(help="Column of the test file by whose groups task models are judged too.", type=str, default=""),
    ] = None
    embedder: Annotated[str, Option(help='"packaged" or a local sentence-transformers folder.')] = "packaged"
    ray: str | None = None  # each command has its own option for it
    public_data: Annotated[
        bool, Option(help="All files are public: keep their embeddings on this disk, to go on from.")
    ] = False
    seed: Annotated[int, Option(help="Fixes the task model's split and start.", min=0)] = 0
