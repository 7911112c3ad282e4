"""Loads embedders by name: the packaged model, a local folder, another package's plug-in, or a notebook's function.

A plug-in's name is ``plug-in:NAME@SHA256``. A function's name is ``function:NAME``: the notebook has put it into
``FUNCTIONS``, for simulations in the same process.
"""

import logging
import re
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from undersong_common.arrays import Float32, Float64
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.models.embedding import TRIAL_TEXTS, Embedder, Progress, TextLengths
from undersong_common.models.model_files import MAX_WINDOWS, PACKAGED, embedding_size, model_folder
from undersong_common.models.workers import row_norms
from undersong_common.program import plugins

log = logging.getLogger(__name__)

PREFIX = "plug-in:"
FUNCTION = "function:"
FUNCTIONS: dict[str, Callable[[str], Sequence[float]]] = {}  # by name; each returns the vector of a text
_NAMED = re.compile(r"plug-in:([^@\s]+)(?:@([0-9a-f]{64}))?")


class ForeignModel(Protocol):
    """Interface of another package's model: its entry point of ``undersong.embedders`` returns one, without arguments.

    Attributes:
        dimension: coordinates of an embedding.
        fingerprint: hash of all files that the model reads beside its source, such as weights; equal fingerprints mean
            equal embeddings.
    """

    dimension: int
    fingerprint: str

    def embed(self, text: str) -> Sequence[float]:
        """Returns the embedding of one text, of any norm above 0; equal texts have equal embeddings at every call."""


class FunctionModel:
    """Wraps a function from text to vector as a model; the fingerprint is a hash of its vectors of public texts."""

    def __init__(self, function: Callable[[str], Sequence[float]]) -> None:
        trial_vectors = np.array([function(text) for text in TRIAL_TEXTS], dtype=np.float64)
        self.embed = function
        self.dimension = trial_vectors.shape[1]
        self.fingerprint = tagged_hash("undersong embedder of a function", trial_vectors.tobytes()).hex()


class ForeignEmbedder(Embedder):
    """Another package's embedder. It embeds one text at a time, so that none changes another's embedding.

    A text at which the package fails gets a zero row. ``fingerprint`` covers the package's source and the model's own
    fingerprint.

    Args:
        source: SHA-256 (hex) of the package's source; "" for a function of the caller's own.
        name: name of the model in messages.
    """

    def __init__(self, model: ForeignModel, source: str, name: str = "of another package") -> None:
        foreign_fingerprint = str(model.fingerprint).encode("utf-8")
        super().__init__(
            name, tagged_hash("undersong embedder of another package", source.encode(), foreign_fingerprint).hex()
        )
        self._foreign_model = model
        self._call_lock = threading.Lock()

    @cached_property
    def dimension(self) -> int:
        return int(self._foreign_model.dimension)

    def try_out(self) -> None:
        """Tries the model out as :meth:`Embedder.try_out`; also raises whatever the package raises."""
        for text in TRIAL_TEXTS:
            self._unit_vector(text)
        super().try_out()

    def lengths(self, texts: Sequence[str]) -> TextLengths:
        """Reports no text as long or cut, because another package does not tell its window."""
        return TextLengths(len(texts), 0, 0)

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Returns rows as :meth:`Embedder.encode`; the row is zero for a text at which the package fails.

        The log tells the number of these texts, never a text.
        """
        unit_vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        failure_count = 0
        for text_number, text in enumerate(texts):
            try:
                with self._call_lock:
                    unit_vectors[text_number] = self._unit_vector(text)
            except (Exception, SystemExit):  # noqa: BLE001 - its message may hold the text; no text may end the program
                failure_count += 1
            if progress is not None:
                progress(text_number + 1, len(texts))
        if failure_count:
            log.warning(
                "the embedder %s fails at %d of %d texts: they count as zero", self._source, failure_count, len(texts)
            )
        return unit_vectors

    def _unit_vector(self, text: str) -> Float64:
        """Returns the unit vector, or zeros if the package gives zeros.

        Raises ValueError for a coordinate that is no finite number or another length, and what the package raises.
        """
        vector_values: Float64 = np.asarray(self._foreign_model.embed(text), dtype=np.float64).reshape(self.dimension)
        if not np.isfinite(vector_values).all():
            raise ValueError("a coordinate is no finite number")
        return vector_values / np.maximum(row_norms(vector_values), 1e-12)


def load(model: str | Path, max_windows: int = MAX_WINDOWS) -> Embedder:
    """Returns the embedder that ``model`` names; one of another package is tried out on public texts before.

    Nothing of another package is imported before its source has the stated hash.

    Raises ConfigurationError if there is no embedder of that name, if its source has another hash, or if it fails at a
    public text; else as :meth:`Embedder.load`.
    """
    if not _is_foreign(model):
        return Embedder.load(model, max_windows)
    if str(model).startswith(FUNCTION):
        if (embedding_function := FUNCTIONS.get(str(model).removeprefix(FUNCTION))) is None:
            raise ConfigurationError(
                f"this process has no embedder {model!r}", "make the task anew with it, in the process that runs it"
            )
        return _try_embedder(str(model), lambda: ForeignEmbedder(FunctionModel(embedding_function), "", str(model)))
    embedder_name, pinned_hash = _split_name(str(model))
    if (plugin := plugins.find("embedders", embedder_name)) is None:
        raise ConfigurationError(f"no installed package declares the embedder {embedder_name!r}", "install its package")
    source_hash = plugins.source_hash(plugin)
    if pinned_hash not in ("", source_hash):
        raise ConfigurationError(
            f"the embedder {embedder_name!r} of {plugin.words} has the source {source_hash}, not {pinned_hash}",
            "install the release whose hash you were told",
        )
    make_model = plugins.load(plugin, pinned_hash)
    return _try_embedder(
        f"{embedder_name!r} of {plugin.words}", lambda: ForeignEmbedder(make_model(), source_hash, embedder_name)
    )


def _try_embedder(words: str, make: Callable[[], ForeignEmbedder]) -> Embedder:
    try:
        embedder = make()
        embedder.try_out()
    except UndersongError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"the embedder {words} fails at a public text: {type(error).__name__}: {error}",
            "correct it, or name another embedder",
        ) from error
    return embedder


def check(model: str | Path, max_windows: int = MAX_WINDOWS) -> Embedder:
    """Returns the embedder that ``model`` names, after trying it out on public texts.

    The packaged one is not tried out: its files are pinned by their hashes.

    Raises ConfigurationError as :func:`load`, and for a local folder whose model is broken.
    """
    embedder = load(model, max_windows)
    if model != PACKAGED:
        embedder.try_out()
    return embedder


def dimension(model: str) -> int:
    """Returns the number of coordinates of a model's embeddings; loads the model if it is another package's.

    Raises ConfigurationError as :func:`load`.
    """
    if _is_foreign(model):
        return load(model).dimension
    return embedding_size(model_folder(model))


def check_pinned(model: str) -> None:
    """Raises ConfigurationError for an embedder that no party may use: another package's named without its hash.

    It also refuses a notebook's function. At a party an embedder reads the private records.
    """
    if model.startswith(FUNCTION):
        raise ConfigurationError(
            f"the embedder {model!r} is a function of a notebook, which only a simulation can use",
            "name a model's folder, an installed package's embedder, or the packaged model",
        )
    if not _is_foreign(model) or _split_name(model)[1]:
        return
    plugin = plugins.find("embedders", _split_name(model)[0])
    if plugin is None:
        installed_words = ""
    else:
        installed_words = f"; what is installed here has {plugins.source_hash(plugin)}"
    raise ConfigurationError(
        f"the embedder {model!r} is another package's and is named without the hash of its source",
        f"read the package, and name it as {model}@SHA256{installed_words}",
    )


def _is_foreign(model: str | Path) -> bool:
    return isinstance(model, str) and model.startswith((PREFIX, FUNCTION))


def _split_name(model: str) -> tuple[str, str]:
    if (name_match := _NAMED.fullmatch(model)) is None:
        raise ConfigurationError(f"the embedder {model!r} is no plug-in:NAME@SHA256", "correct its name")
    return name_match[1], name_match[2] or ""
