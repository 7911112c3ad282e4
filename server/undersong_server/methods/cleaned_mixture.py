"""The mixture with label shares, cleaned by itself: labels that the other texts contradict are repaired or dropped.

The same texts and the same private label histogram as ``mixture+labels``; what is done to labels reads public texts
alone and costs no budget. A method that asks the records more than their labels has to beat this one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_server.learning import classifier, probabilities
from undersong_server.methods import mixture_labels
from undersong_server.methods.interface import Method, RunContext, Sample

FOLDS = 5
STRENGTH = 1.0  # inverse regularisation of the classifiers, C
MOST_LOST = 0.2  # largest share of a label's texts that is left out
DROPPED = -1

Fit = Callable[[Any, Int64, int], Float64]  # a classifier from rows, their labels, and the number of labels
Judge = tuple[Any, Fit]  # the texts as rows, dense or sparse, and what learns from rows


def cleaned(
    embeddings: Float32, label_of: Int64, author: Int64, labels: int, rng: np.random.Generator, *others: Judge
) -> Int64:
    """Label of each text after cleaning, int64 [n], or ``DROPPED``.

    A label is contradicted if another one is likelier and its probability is below the label's threshold: the mean
    probability of the label among the texts that carry it (confident learning: Northcutt, Jiang and Chuang 2021,
    equation 2). The text gets the likeliest label if that one reaches its own threshold; otherwise it is dropped. No
    label loses more than ``MOST_LOST`` of its texts, the most contradicted first.

    A judge estimates the probability of each label. Every judge must contradict the label, and name the same other one:
    what embeddings cannot tell apart, such as an event and a near miss, words often can. Probabilities are the mean of
    the judges'.

    Args:
        embeddings: unit, float32 [n, d].
        label_of, author: label and generator of each text, int64 [n]; ``labels`` is the number of labels.
        others: judges beside the linear classifier of embeddings.
    """
    groups = [rng.permutation(len(label_of)) % FOLDS, author]
    groups = [group for group in groups if len(np.unique(group)) > 1]
    if not groups:
        return label_of.copy()
    judges: tuple[Judge, ...] = ((embeddings, partial(classifier, strength=STRENGTH)), *others)
    judged = [np.mean([_out_of(group, *judge, label_of, labels) for group in groups], axis=0) for judge in judges]
    probability, rows = np.mean(judged, axis=0), np.arange(len(label_of))
    given = np.bincount(label_of, minlength=labels)
    own, best, likeliest = probability[rows, label_of], probability.max(axis=1), probability.argmax(axis=1)
    thresholds, contradicted, found = np.zeros(labels), likeliest != label_of, label_of.copy()
    for each in judged:
        threshold = np.bincount(label_of, weights=each[rows, label_of], minlength=labels) / np.maximum(given, 1)
        contradicted &= (each.argmax(axis=1) == likeliest) & (each[rows, label_of] < threshold[label_of])
        thresholds += threshold / len(judged)
    for label in range(labels):
        mine = np.flatnonzero(contradicted & (label_of == label))
        lost = mine[np.argsort(own[mine] - best[mine], kind="stable")[: int(MOST_LOST * given[label])]]
        found[lost] = np.where(best[lost] >= thresholds[likeliest[lost]], likeliest[lost], DROPPED)
    return found


def _out_of(group: Int64, x: Any, fit: Fit, label_of: Int64, labels: int) -> Float64:
    """Probability of each label, float64 [n, C], by a classifier of the texts of all groups but the text's own."""
    found = np.zeros((len(label_of), labels))
    for number in np.unique(group):
        inside = group == number
        found[inside] = probabilities(fit(x[~inside], label_of[~inside], labels), x[inside])
    return found


def run(options: mixture_labels.Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the synthetic corpus, which has fewer texts than were ordered."""
    samples, names = mixture_labels.run(options, run), run.setting.labels
    embeddings = run.embeddings(samples)
    found = cleaned(embeddings, run.label_numbers(samples), run.pool.generator_of, len(names), run.rng("folds"))
    run.record("dropped", 0, int((found == DROPPED).sum()))
    return [
        replace(sample, label=names[label])
        for sample, label in zip(samples, found.tolist(), strict=True)
        if label != DROPPED
    ]


METHOD = Method(
    Options=mixture_labels.Options,
    plan=mixture_labels.plan,
    run=run,
    asks_first=lambda _options, _setting: True,
)
