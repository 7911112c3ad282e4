"""Scores per seed and per group, against scikit-learn on the same predictions."""

from __future__ import annotations

import pytest

from undersong_common.intervals import clopper_pearson, over_seeds
from undersong_server.evaluation import panel
from undersong_server.evaluation.panel import score_models

TRUE = list("aabbcabc")
PREDICTED = {3: list("aabbcabc"), 4: list("abbbcaac"), 5: list("cabbcabb")}
GROUPS = list("xxxxyyyy")


def test_figures_of_seeds_and_groups_use_their_own_predictions() -> None:
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

    found = score_models("corpus", 9, [(f"m{seed}", {"m": each}) for seed, each in PREDICTED.items()], TRUE, GROUPS)
    assert found.model == "m3"
    assert found.scores.figures()["accuracy"] == 1.0
    assert found.interval("accuracy") == over_seeds([accuracy_score(TRUE, each) for each in PREDICTED.values()])
    balanced = [balanced_accuracy_score(TRUE, each) for each in PREDICTED.values()]
    assert found.interval("balanced_accuracy").value == pytest.approx(sum(balanced) / 3)
    last = [f1_score(TRUE[4:], each[4:], average="macro") for each in PREDICTED.values()]
    assert found.interval("macro_f1", "y").value == pytest.approx(sum(last) / 3)
    assert found.to_json()["groups"]["x"]["rows"] == 4


def test_panel_figures_are_means_over_models_and_list_each_model() -> None:
    from sklearn.metrics import accuracy_score, recall_score

    predicted: dict[str, list[str]] = dict(zip(panel.MODELS, PREDICTED.values(), strict=True))
    found = score_models("corpus", 9, [("panel", predicted)], TRUE, GROUPS)
    accuracies = [accuracy_score(TRUE, each) for each in predicted.values()]
    assert found.interval("accuracy").value == pytest.approx(sum(accuracies) / 3)
    rarest = [recall_score(TRUE, each, labels=["c"], average="macro") for each in predicted.values()]
    assert found.interval("rarest_recall").value == pytest.approx(sum(rarest) / 3)
    assert found.description == "panel: words 100.0 %, head 75.0 %, mlp 75.0 %"
    assert found.to_json()["models"]["mlp"]["accuracy"] == accuracies[2]
    assert [len(scores) for scores in found.groups.values()] == [1, 1]


def test_the_stated_accuracy_is_the_mean_of_all_seeds() -> None:
    accuracy = score_models("corpus", 9, [("m", {"m": each}) for each in PREDICTED.values()], TRUE).accuracy_by_texts
    assert accuracy.value == pytest.approx((1 + 6 / 8 + 6 / 8) / 3)
    by_texts = clopper_pearson(7, 8)  # the mean is 6.7 of 8 texts
    assert (accuracy.low, accuracy.high) == (by_texts.low, by_texts.high)


def test_one_seed_without_groups_has_no_intervals() -> None:
    from sklearn.metrics import accuracy_score

    found = score_models("corpus", 9, [("m", {"m": PREDICTED[4]})], TRUE).to_json()
    assert "over_seeds" not in found
    assert "groups" not in found
    assert found["accuracy"] == accuracy_score(TRUE, PREDICTED[4])
