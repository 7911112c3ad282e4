"""Python imports this module at its start where this folder is on its path: then texts are embedded by hashing.

So a test's processes, and those that they start, load no weights.
"""

from undersong_common.models import embedders
from undersong_common.models.embedding import Embedder


def _load(*_: object) -> Embedder:
    from tests.doubles.party_home import HashedEmbedder

    return HashedEmbedder()


def _dimension(model: str) -> int:
    return _load().dimension


embedders.dimension = _dimension
Embedder.load = staticmethod(_load)  # type: ignore[assignment,method-assign]
