"""Statistics: the integer vectors that private sums open, each with its own tight sensitivity.

A new statistic is one file with one registered, frozen dataclass, imported here.
"""

from protocol.statistics.classifier_votes import ClassifierVotes
from protocol.statistics.corrected_votes import CorrectedVotes
from protocol.statistics.embedding_sum import EmbeddingSum
from protocol.statistics.fourier import FourierFeatures
from protocol.statistics.generator_votes import GeneratorVotes
from protocol.statistics.histogram import LabelHistogram, LengthHistogram
from protocol.statistics.interface import (
    LabelledEmbeddings,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
)
from protocol.statistics.metadata import MetadataHistograms
from protocol.statistics.registry import build, names, parameters, register
from protocol.statistics.terms import TermHistogram
from protocol.statistics.votes import TopQVotes, top_q_votes

__all__ = [
    "ClassifierVotes",
    "CorrectedVotes",
    "EmbeddingSum",
    "FourierFeatures",
    "GeneratorVotes",
    "LabelHistogram",
    "LabelledEmbeddings",
    "LengthHistogram",
    "MetadataHistograms",
    "PublicInputs",
    "RecordView",
    "Rows",
    "Sensitivity",
    "Statistic",
    "TermHistogram",
    "TopQVotes",
    "build",
    "names",
    "parameters",
    "register",
    "top_q_votes",
]
