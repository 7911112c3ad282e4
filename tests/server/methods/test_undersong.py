"""The plan of undersong: a public number of records divides the budget, and a wrong one leaves a sound run."""

from collections import Counter

from undersong_protocol.plan import Privacy
from undersong_server.methods.interface import Setting
from undersong_server.methods.undersong import Options, plan


def asked(labels=2, generators=2, *, records=1000, epsilon=4.0, **options):
    names = tuple(f"label {n}" for n in range(labels)), tuple(f"generator {n}" for n in range(generators))
    setting = Setting(*names, privacy=Privacy(epsilon, 1e-5), expected_records=records)
    return {request.name: request for request in plan(Options(rounds=2, **options), setting)}


def test_the_plan_asks_for_what_the_task_can_use():
    soft = ["errors/1", "errors/2", "errors/3", "last verdict"]
    assert list(asked()) == ["moments", "places", "useful", "votes/1", "votes/2", "verdict", *soft]
    assert list(asked(labels=0)) == ["places", "votes/1"]
    assert list(asked(generators=1)) == ["moments", "votes/1", "votes/2", "verdict", *soft]
    assert list(asked(verdict=False)) == ["moments", "places", "useful", "votes/1"]
    assert list(asked(epsilon=float("inf"))) == list(asked(records=10_000))


def test_single_texts_are_voted_on_where_noise_leaves_the_votes_of_regions_standing():
    few, many = asked(samples=600, records=50), asked(samples=600, records=100)
    assert list(many) == ["moments", "places", "useful", "votes/1", "votes/2", "verdict"]
    assert list(few) == list(asked(samples=600, records=100, without="voted")) == [*list(many)[:4], "verdict"]
    assert list(asked(samples=600, records=100, verdict=False)) == list(many)[:4]
    assert list(asked(samples=6000, records=100)) == list(few)
    assert [many[name].statistic.name for name in ("votes/1", "votes/2")] == ["corrected_votes", "equal_votes"]
    # every text is a candidate of the last votes, and the verdict has one corpus more
    assert (many["votes/1"].statistic.candidates, many["votes/2"].statistic.candidates) == (300, 600)
    assert many["verdict"].statistic.classifiers == few["verdict"].statistic.classifiers + 1


def test_few_expected_records_are_not_asked_for_what_noise_would_drown():
    kinds = Counter()
    for records in (20, 100, 1000, 10_000):
        names = asked(labels=20, records=records)
        kind = next((name for name in ("moments", "labels") if name in names), "neither")
        kinds[kind] += 1
        assert {"useful", "places"} <= set(names)
        assert ("verdict" in names) == (records > 20)
    assert kinds == {"neither": 1, "labels": 1, "moments": 2}
    assert "moments" not in asked(labels=10, records=300, epsilon=1.0)
    assert "moments" in asked(labels=10, records=300, epsilon=4.0)


def test_gradients_are_asked_where_a_label_has_many_records():
    for labels, epsilon, least in ((2, 4.0, 900), (10, 4.0, 4400), (2, 1.0, 3500)):
        few, many = (asked(labels, epsilon=epsilon, records=records) for records in (least // 2, least))
        assert [name for name in many if name not in few] == ["errors/1", "errors/2", "errors/3", "last verdict"]
    assert "last verdict" not in asked(without="soft")
    assert "errors/1" not in asked(verdict=False)


def test_a_shorter_menu_is_judged_with_less_noise():
    whole, shorter = asked()["verdict"].statistic, asked(without="matched")["verdict"].statistic
    assert whole.sensitivity.l2 > shorter.sensitivity.l2
