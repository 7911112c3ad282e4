"""An evaluation whose pieces are computed elsewhere finds the same figures."""

from __future__ import annotations

import pytest
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from tests.doubles.cluster import PickledCalls
from tests.server.evaluation.test_evaluate import bag_of_words, notes
from undersong_common.errors import ConfigurationError
from undersong_common.table import Table
from undersong_server.evaluation.evaluate import computed, evaluate_tables
from undersong_server.evaluation.membership import attacks_over_trainings, membership
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.evaluation.task_model import train
from undersong_server.operations.evaluation import over

pytestmark = pytest.mark.heavy  # trains task models


def table(count: int, seed: int) -> Table:
    texts, labels = zip(*notes(count, seed), strict=True)
    return Table(texts, labels, None)


def evaluated(compute, repeats=2, synthetic=None):
    return evaluate_tables(
        "run",
        table(40, 0) if synthetic is None else synthetic,
        EvaluationOptions(
            test=table(30, 1),
            train_private=table(20, 2),
            overlap=table(20, 2),
            adapt_to=table(20, 3),
            membership=(table(20, 2), table(20, 4)),
            head="linear",
            repeats=repeats,
        ),
        embed=bag_of_words,
        groups=["a", "b", "b"] * 10,
        compute=compute,
    )


@pytest.mark.slow
def test_the_report_is_the_same_to_the_last_digit():
    cluster = PickledCalls()
    assert evaluated(over(cluster)).to_json() == evaluated(over(None)).to_json()
    assert len(cluster.asked) == 1
    assert cluster.asked[0] > 30  # each seed of a model and each figure by itself


def test_attacks_of_several_trainings_are_the_first_with_the_mean_area_beside():
    members, others = table(20, 2), table(20, 4)
    model = train(bag_of_words(table(40, 0).texts), table(40, 0).labels, head="linear")
    sides = [(each, bag_of_words(each.texts)) for each in (members, others)]
    apart = [membership("synthetic", model, *sides, seed=seed) for seed in (0, 1)]
    together = attacks_over_trainings(apart)
    for number, attack in enumerate(together.attacks):
        assert attack.auc == apart[0].attacks[number].auc
        areas = [each.attacks[number].auc.value for each in apart]
        assert attack.auc_over_seeds is not None
        assert attack.auc_over_seeds.value == pytest.approx(sum(areas) / 2)
    assert attacks_over_trainings(apart[:1]) == apart[0]


def test_products_of_a_piece_take_one_thread():
    with threadpool_limits(2):
        found = computed(threadpool_info, ())
    assert {pool["num_threads"] for pool in found if pool["user_api"] == "blas"} == {1}


def test_what_a_piece_refuses_is_refused():
    unlabelled = Table(table(40, 0).texts, None, None)
    with pytest.raises(ConfigurationError) as refused:
        evaluated(over(PickledCalls()), repeats=1, synthetic=unlabelled)
    assert refused.value.code == "labels-missing"
