"""The mixture with label shares, cleaned by its own texts: labels that other texts contradict change or are dropped.

It has the same texts and the same private label histogram as ``mixture+labels``; the cleaning reads synthetic texts
alone and costs no budget. A method that asks the records for more than their labels has to beat this one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_server.learning import classifier, probabilities
from undersong_server.methods import mixture_labels
from undersong_server.methods.interface import Method, RunContext, Sample

FOLDS = 5
STRENGTH = 1.0  # inverse regularisation of the classifiers, C
MOST_LOST = 0.2  # largest share of a label's texts that is left out
CLEARLY = 2.0  # standard errors by which judges must be right more often than not before they change a label
DROPPED = -1  # stands for the label of a text that is left out

Fit = Callable[[Any, Int64, int], Float64]  # a classifier from rows, their labels, and the number of labels
Judge = tuple[Any, Fit]  # the texts as rows, dense or sparse, and what learns from rows


def cleaned(
    embeddings: Float32,
    label_of: Int64,
    generator_of: Int64,
    label_count: int,
    rng: np.random.Generator,
    *further_judges: Judge,
) -> Int64:
    """Label of each text after cleaning, int64 [n], or ``DROPPED``.

    A label is contradicted if another one is likelier and its probability is below the label's threshold: the mean
    probability of the label among the texts that carry it (confident learning: Northcutt, Jiang and Chuang 2021,
    equation 2). The text gets the likeliest label if that one reaches its own threshold; otherwise it is dropped. No
    label loses more than ``MOST_LOST`` of its texts, the most contradicted first.

    A judge estimates the probability of each label. Every judge must contradict the label, and name the same other one:
    what embeddings cannot tell apart, such as an event and a near miss, words often can. Probabilities are the mean of
    the judges'.

    Few or unclear texts teach judges little, and then their contradictions are chance. So no label changes unless the
    judges are clearly right about most labels, or clearly agree with each other more often than with the labels.

    Args:
        embeddings: unit, float32 [n, d].
        label_of, generator_of: label and generator of each text, int64 [n]; ``label_count`` is the number of labels.
        further_judges: judges beside the linear classifier of embeddings.
    """
    fold_groups = [rng.permutation(len(label_of)) % FOLDS, generator_of]
    fold_groups = [group for group in fold_groups if len(np.unique(group)) > 1]
    if not fold_groups:
        return label_of.copy()
    judges: tuple[Judge, ...] = ((embeddings, partial(classifier, strength=STRENGTH)), *further_judges)
    probabilities_by_judge = [
        np.mean([_estimate_held_out(group, *judge, label_of, label_count) for group in fold_groups], axis=0)
        for judge in judges
    ]
    mean_probabilities, text_numbers = np.mean(probabilities_by_judge, axis=0), np.arange(len(label_of))
    text_count_of_label = np.bincount(label_of, minlength=label_count)
    label_probability, best_probability, likeliest = (
        mean_probabilities[text_numbers, label_of],
        mean_probabilities.max(axis=1),
        mean_probabilities.argmax(axis=1),
    )
    if not _can_tell(likeliest == label_of, [each.argmax(axis=1) for each in probabilities_by_judge], label_of):
        return label_of.copy()
    thresholds, contradicted, cleaned_labels = np.zeros(label_count), likeliest != label_of, label_of.copy()
    for judge_probabilities in probabilities_by_judge:
        threshold = np.bincount(
            label_of, weights=judge_probabilities[text_numbers, label_of], minlength=label_count
        ) / np.maximum(text_count_of_label, 1)
        contradicted &= (judge_probabilities.argmax(axis=1) == likeliest) & (
            judge_probabilities[text_numbers, label_of] < threshold[label_of]
        )
        thresholds += threshold / len(probabilities_by_judge)
    for label in range(label_count):
        contradicted_rows = np.flatnonzero(contradicted & (label_of == label))
        suspect_rows = contradicted_rows[
            np.argsort(label_probability[contradicted_rows] - best_probability[contradicted_rows], kind="stable")[
                : int(MOST_LOST * text_count_of_label[label])
            ]
        ]
        cleaned_labels[suspect_rows] = np.where(
            best_probability[suspect_rows] >= thresholds[likeliest[suspect_rows]], likeliest[suspect_rows], DROPPED
        )
    return cleaned_labels


def _can_tell(is_right: Bools, answers: Sequence[Int64], label_of: Int64) -> bool:
    """Returns True if judges may change labels: they are clearly right, or agree with each other more than with labels.

    Args:
        is_right: whether the judges together give a text the label that it has, bool [n].
        answers: the likeliest labels by each judge, int64 [n] each.
    """
    agreement = (answers[0] == answers[-1]) - np.mean([answer == label_of for answer in answers], axis=0)
    error = CLEARLY / np.sqrt(len(label_of))
    return bool(is_right.mean() - error * is_right.std() > 0.5 or agreement.mean() - error * agreement.std() > 0)


def _estimate_held_out(group: Int64, x: Any, fit: Fit, label_of: Int64, label_count: int) -> Float64:
    """Probability of each label, float64 [n, C], by a classifier of the texts of all groups but the text's own."""
    fold_probabilities = np.zeros((len(label_of), label_count))
    for group_number in np.unique(group):
        in_fold = group == group_number
        fold_probabilities[in_fold] = probabilities(fit(x[~in_fold], label_of[~in_fold], label_count), x[in_fold])
    return fold_probabilities


def run(options: mixture_labels.Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the synthetic corpus, which has fewer texts than were ordered."""
    samples, label_names = mixture_labels.run(options, run), run.setting.labels
    embeddings = run.embeddings(samples)
    cleaned_labels = cleaned(
        embeddings, run.label_numbers(samples), run.pool.generator_of, len(label_names), run.rng("folds")
    )
    run.record("dropped", 0, int((cleaned_labels == DROPPED).sum()))
    return [
        replace(sample, label=label_names[label])
        for sample, label in zip(samples, cleaned_labels.tolist(), strict=True)
        if label != DROPPED
    ]


METHOD = Method(
    Options=mixture_labels.Options,
    plan=mixture_labels.plan,
    run=run,
    asks_first=lambda _options, _setting: True,
)
