"""Shares of the generators by how much their texts resemble the private records, from a public author classifier.

The coordinator trains a classifier that predicts which generator wrote a text, and publishes it. A private sum gives
its mean probabilities over the records (``protocol/statistics/classifier_probabilities``): K noisy numbers, whatever
the number of candidates. Cross-validation gives the same means for each generator's texts. The shares are those of the
mixture of generators whose means match the records' (Lipton et al. 2018, with probabilities in place of answers). They
depart from equal shares only as far as the known noise requires.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.projections import PLACE
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.consistency import alike, averaged, classifier, probabilities
from undersong_server.methods.parts.matching import fewest_of, records_of, tilted_towards
from undersong_server.methods.parts.places import cell_means, cell_shares

STRENGTH = 10.0  # inverse regularisation of the classifier of authors: unsure probabilities tell little
FOLDS = 5  # of the texts, so that each is answered for by a classifier that did not learn from it


@dataclass(frozen=True, eq=False)
class Authors:
    """A public classifier of authors, with cross-validated statistics of its probabilities on each generator's texts.

    Attributes:
        classifier: float64 [d + 1, K], on its grid.
        means: of the probabilities on each generator's texts, around 1 / K, float64 [K, K]; 0 for one without texts.
        spread: variance of one text's coordinate, averaged over the coordinates.
        sample_variance: of a coordinate of ``means``, averaged: what comes from there being no more texts.
        alike: generators that it cannot tell apart have one number (:func:`consistency.alike`), int64 [K].
    """

    classifier: Float64
    means: Float64
    spread: float
    sample_variance: float
    alike: Int64

    @classmethod
    def of(
        cls,
        embeddings: Float32,
        labels: Int64,
        author: Int64,
        generators: int,
        label_shares: Float64,
        rng: np.random.Generator,
    ) -> Authors:
        """Trains the classifier on the first texts and computes its cross-validated statistics.

        Args:
            embeddings: unit, float32 [n, d]; labels (-1 where the task has none), author: int64 [n].
            generators: K.
            label_shares: of the records, float64 [C], C at least 1: a generator's labels weigh as these say.
            rng: divides the texts into folds.
        """
        group = np.maximum(labels, 0)
        weights = cell_shares(author, group, np.ones((generators, 1)) * label_shares)

        def learnt(chosen: Int64) -> Float64:
            return classifier(
                embeddings[chosen], author[chosen], generators, strength=STRENGTH, weights=weights[chosen]
            )

        fold = np.empty(len(author), dtype=np.int64)
        fold[rng.permutation(len(author))] = np.arange(len(author)) % FOLDS
        said = np.zeros((len(author), generators))
        for each in range(min(FOLDS, len(author))):
            held = fold == each
            said[held] = probabilities(learnt(np.flatnonzero(~held)), embeddings[held])
        said -= 1.0 / generators
        found = cell_means(said, group, author, generators, len(label_shares))
        known = ~np.isnan(found[:, :, 0])
        parts = known * label_shares
        parts /= np.maximum(parts.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        means = np.einsum("kc,kcj->kj", parts, np.nan_to_num(found))
        around = float((said - means[author]).var(axis=0).mean())
        texts = np.bincount(author, minlength=generators)
        return cls(
            classifier=COEFFICIENTS.quantised(learnt(np.arange(len(author)))),
            means=means,
            spread=float(said.var(axis=0).mean()),
            sample_variance=around * float((1.0 / texts[texts > 0]).mean()),
            alike=alike(said, group, author, generators, len(label_shares)),
        )


def near_shares(opened: NoisySum, authors: Authors) -> Float64:
    """Returns the generators' shares, float64 [K], positive, sum 1, whose mixture matches the records' probabilities.

    Shares stay near equal as far as noise, the spread of the records and the sample of texts explain a difference
    (:func:`matching.tilted_towards`). The spread is divided by a lower bound of the number of records. Generators that
    cannot be told apart get equal shares. If no mixture matches the records, the nearest one is taken.
    """
    generators, fewest = len(authors.means), fewest_of(opened)
    unit = np.sqrt((generators - 1.0) / generators) / PLACE
    place = opened.natural[1:] * unit / records_of(opened)
    variance = (opened.sigma * unit / fewest) ** 2 + authors.spread / fewest + authors.sample_variance
    found = tilted_towards(place, variance, authors.means, np.full(generators, 1.0 / generators))
    return averaged(found, authors.alike)
