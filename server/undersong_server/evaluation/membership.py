"""Membership inference against the task model: entropy and confidence attacks, with their intervals.

Source: Sun et al. 2025 (DPGA-TextSyn), appendix F; the attacks are those of Salem et al. 2019 and Yeom et al. 2018. The
attacker sees the small task model that was trained on synthetic texts, and guesses of real records whether they were
private training data (members) or not. A model that leaks nothing gives every attack one half.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import CONFIDENCE_LEVEL, Interval, auc_interval, clopper_pearson, over_seeds
from undersong_common.table import Table

FALSE_POSITIVES = 0.01  # the rate at which true positives are reported (Carlini et al. 2022)
FEWEST = 4  # records of each kind: half set the threshold, half are judged


@dataclass(frozen=True)
class Attack:
    """Success of one membership inference attack on a task model.

    Attributes:
        name: the score that it thresholds, in words.
        auc: chance that a member scores higher than a non-member (DeLong's interval); 0.5 is guessing.
        accuracy: balanced accuracy on one half of the records at the threshold that is best on the other half; its
            interval joins two Clopper-Pearson ones. 0.5 is guessing.
        true_positives: true positive rate at a false positive rate of 1 % on the other half; 0.01 is guessing.
        found, judged_members: numbers of members that the threshold calls members, and of members that were judged.
        false_alarms, judged_others: the same two numbers of non-members.
        auc_over_seeds: mean AUC over several trainings with its interval; None for a single training.
    """

    name: str
    auc: Interval
    accuracy: Interval
    true_positives: Interval
    found: int
    judged_members: int
    false_alarms: int
    judged_others: int
    auc_over_seeds: Interval | None = None


@dataclass(frozen=True)
class Membership:
    """All attacks on one task model. ``members`` and ``nonmembers`` count the records."""

    data: str
    members: int
    nonmembers: int
    attacks: tuple[Attack, ...]


Records = tuple[Table, Any]
"""Records, and what the attacked model reads of each: embeddings, or the texts themselves."""


def membership(data: str, model: Any, members: Records, nonmembers: Records, *, seed: int = 0) -> Membership:
    """Attacks ``model``, which was trained on ``data`` (in words) and gives each record ``probabilities``.

    Raises ConfigurationError with fewer than four records of a kind.
    """
    sides = (members, nonmembers)
    for name, (table, _) in zip(("members", "non-members"), sides, strict=True):
        if len(table) < FEWEST:
            raise ConfigurationError(
                f"--membership: {len(table)} {name}", f"give at least {FEWEST} records of each", code="too-few-records"
            )
    probabilities = [model.probabilities(read) for _, read in sides]
    attacks = [
        _attack("entropy", [-entropy(each) for each in probabilities], seed),
        _attack("confidence", [each.max(axis=1) for each in probabilities], seed),
    ]
    if all(table.labels is not None for table, _ in sides):
        known = [
            of_label(each, model.labels, table.labels or ())
            for each, (table, _) in zip(probabilities, sides, strict=True)
        ]
        attacks.append(_attack("confidence in the true label", known, seed))
    return Membership(data, len(members[0]), len(nonmembers[0]), tuple(attacks))


def attacks_over_trainings(found: Sequence[Membership]) -> Membership:
    """Returns the first training's figures.

    Of several trainings, each attack's ``auc_over_seeds`` is its mean AUC over them, with the interval.
    """
    if len(found) == 1:
        return found[0]
    attacks = [
        replace(each, auc_over_seeds=over_seeds([one.attacks[number].auc.value for one in found]))
        for number, each in enumerate(found[0].attacks)
    ]
    return replace(found[0], attacks=tuple(attacks))


def _attack(name: str, scores: Sequence[Float64], seed: int) -> Attack:
    """Judges ``scores`` of members and of others; no threshold is judged on the records that chose it."""
    rng = np.random.default_rng([seed, 0x3E3B])
    members, nonmembers = (rng.permutation(each) for each in scores)
    m, n = len(members) // 2, len(nonmembers) // 2
    threshold = _best_threshold(members[:m], nonmembers[:n])
    hits, wrong = int((members[m:] >= threshold).sum()), int((nonmembers[n:] >= threshold).sum())
    # Two intervals of 97.5 % hold together with 95 %.
    joint = 1.0 - (1.0 - CONFIDENCE_LEVEL) / 2
    caught = clopper_pearson(hits, len(members) - m, joint)
    false = clopper_pearson(wrong, len(nonmembers) - n, joint)
    accuracy = Interval(
        (caught.value + 1 - false.value) / 2, (caught.low + 1 - false.high) / 2, (caught.high + 1 - false.low) / 2
    )
    rare = float(np.quantile(nonmembers[:n], 1.0 - FALSE_POSITIVES, method="higher"))
    positives = clopper_pearson(int((members[m:] > rare).sum()), len(members) - m)
    return Attack(
        name,
        auc_interval(members, nonmembers),
        accuracy,
        positives,
        found=hits,
        judged_members=len(members) - m,
        false_alarms=wrong,
        judged_others=len(nonmembers) - n,
    )


def _best_threshold(members: Float64, nonmembers: Float64) -> float:
    """Returns the threshold on scores whose guesses have the best balanced accuracy."""
    values = np.unique(np.concatenate([members, nonmembers]))
    caught = 1.0 - np.searchsorted(np.sort(members), values) / len(members)
    false = 1.0 - np.searchsorted(np.sort(nonmembers), values) / len(nonmembers)
    return float(values[int(np.argmax(caught - false))])


def entropy(probabilities: Float64) -> Float64:
    """Entropy of each row of probabilities [n, L], in nats, float64 [n]."""
    found: Float64 = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=1)
    return found


def of_label(probabilities: Float64, columns: tuple[str, ...], labels: tuple[str, ...]) -> Float64:
    """Probability of each record's own label; 0 if the model never saw that label."""
    number = {name: column for column, name in enumerate(columns)}
    return np.array(
        [row[number[label]] if label in number else 0.0 for row, label in zip(probabilities, labels, strict=True)]
    )
