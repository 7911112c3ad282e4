"""Statistics: kinds of integer vectors that private sums add up, each with its own tight sensitivity.

A new statistic is one file with one registered, frozen dataclass; nothing else changes. Every module of this folder is
imported here, so that a plan may name any of them. Statistics of other packages run in simulations only, whose programs
register them (undersong_common.program.plugins finds them).
"""

import importlib
import pkgutil

from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.histogram import LabelHistogram, LengthHistogram, MetadataHistograms
from undersong_protocol.statistics.interface import (
    QUESTIONS,
    LabelledEmbeddings,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    build,
    known,
    names,
    of_question,
    parameters,
    register,
    register_foreign,
    source,
)
from undersong_protocol.statistics.votes import TopQVotes

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "QUESTIONS",
    "EmbeddingSum",
    "LabelHistogram",
    "LabelledEmbeddings",
    "LengthHistogram",
    "MetadataHistograms",
    "PublicFacts",
    "PublicInputs",
    "RecordView",
    "Rows",
    "Sensitivity",
    "Statistic",
    "TopQVotes",
    "build",
    "known",
    "names",
    "of_question",
    "parameters",
    "register",
    "register_foreign",
    "source",
]
