"""Options of the papers' ablations and variants: each changes the prompts, questions or choices that it names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tests.doubles.bench import run_method
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.topic_writer import GOOD_WORDS, VOCABULARY, topic_writer
from tests.server.methods.test_dpkps import write_task
from tests.server.methods.test_prompts import OPTIONS
from undersong_common.errors import ConfigurationError
from undersong_server.methods import augpe, dpga, wasp
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts.metadata import shares_by_label
from undersong_server.methods.parts.selection import places_by_label
from undersong_server.pool import Sample
from undersong_server.runs.planning import plan_figures, plan_run
from undersong_server.runs.task import load


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Runs a method of a task over a writer of texts of 4 to 10 words; the requests it got, and the run."""
    asked = topic_writer(monkeypatch)
    (tmp_path / "words.txt").write_text("\n".join(VOCABULARY))

    def run(name: str, changes: Sequence[str], **sections):
        asked.clear()
        path = make_task(tmp_path, parties=1, records=200, samples=60, **sections)
        task = load(path, [f"method.name={name}", *OPTIONS.get(name, []), "privacy.epsilon=inf", *changes])
        run_plan = plan_run(task)
        samples, made = run_method(task, run_plan, seed=3)
        return list(asked), samples, made, run_plan

    return run


# WASP


@pytest.mark.heavy
def test_without_plm_weighting_every_generator_writes_the_same_share(ran):
    _, _, weighted, plan = ran("wasp", [])
    _, _, equal, other = ran("wasp", ["method.plm_weighting=false"])
    assert all(weights == [0.5, 0.5] for _, weights in equal.records["weights"])
    assert any(weights != [0.5, 0.5] for _, weights in weighted.records["weights"])
    assert [one.sigma for one in plan.plan.sums] == [one.sigma for one in other.plan.sums]


@pytest.mark.heavy
@pytest.mark.parametrize("epsilon", ["4", "inf"])
def test_noise_of_weights_is_recorded_after_every_sum_that_has_noise(ran, epsilon):
    _, _, made, _ = ran("wasp", [f"privacy.epsilon={epsilon}"])
    noise = made.records["weights noise"]
    assert [round_ for round_, _ in noise] == [round_ for round_, _ in made.records["weights"]][1:]
    assert any(each > 0 for _, row in noise for each in row) == (epsilon == "4")


@pytest.mark.heavy
def test_wasp_weights_are_shrunk_to_equal_by_the_share_of_noise_in_them(ran):
    for epsilon, equal in (("1.0", True), ("inf", False)):
        _, _, shrunk, _ = ran("wasp", [f"privacy.epsilon={epsilon}"])
        _, _, noisy, _ = ran("wasp", [f"privacy.epsilon={epsilon}", "method.shrink=false"])
        first, other = (np.array(made.records["weights"][1][1]) for made in (shrunk, noisy))
        assert first == pytest.approx([0.5, 0.5] if equal else other, abs=1e-9)
        assert abs(other[0] - 0.5) > 0.01
    rates, written = np.array([3.0, 1.0, 0.0]), np.array([50, 40, 0])
    received, sigma = rates * written, 4.0
    weigh = wasp._weighing(wasp.Options(), received, written, sigma * np.sqrt(written))
    noise = np.array([1 / 50, 1 / 40]) * sigma**2
    noise = np.append(noise, np.mean(np.sqrt(noise)) ** 2).mean()
    kept = 1 - noise / np.var([3.0, 1.0, 2.0], ddof=1)
    assert weigh(received) == pytest.approx((2 + kept * np.array([1.0, -1.0, 0.0])) / 6)


def test_contrastive_false_shows_equally_many_examples_all_good(ran):
    for contrastive, halves in ((True, (2, 2)), (False, (4, 0))):
        asked, _, _, plan = ran("wasp", [f"method.contrastive={str(contrastive).lower()}", "method.examples=4"])
        shown = [request for _, request in asked if request.kind == "contrast"]
        assert shown
        assert {(len(request.good), len(request.bad)) for request in shown} == {halves}
        assert all(("bad example" in request.prompt.casefold()) == contrastive for request in shown)
        assert all(one.parameters["furthest"] for one in plan.plan.sums)


def test_plan_states_the_papers_sigma_with_its_delta_per_round(tmp_path):
    task = load(make_task(tmp_path), ["method.rounds=5", "privacy.delta=1e-5"])
    run_plan = plan_run(task)
    figures = plan_figures(run_plan).to_json()["paper"]
    assert figures["delta_iter"] == pytest.approx(1e-5 / 4)
    expected = wasp.PAPER_SENSITIVITY * np.sqrt(2 * np.log(1.25 / 2.5e-6)) * 2 / 4.0
    assert figures["sigma"] == pytest.approx(expected)


# DPGA-TextSyn


@pytest.mark.heavy
def test_offspring_orders_have_the_parents_length_and_crosses_a_keyword(ran):
    asked, _, run, _ = ran("dpga", ["method.keywords=true", "method.keywords_per_label=5"])
    keywords = dict(run.records["keywords"][0][1])
    offspring = [request for _, request in asked if request.parents]
    assert {request.kind for request in offspring} == {"paraphrase", "fill_in", "cross"}
    for request in offspring:
        lengths = [len(text.split()) for text in request.parents]
        assert request.words == round(sum(lengths) / len(lengths))
        assert f"Use about {request.words} words." in request.prompt
        assert len(request.terms) == (len(request.parents) == 2)
        assert all(term in keywords[request.label] and term in request.prompt for term in request.terms)
    asked, _, _, _ = ran("dpga", ["method.length=false"])
    assert all(request.words is None for _, request in asked if request.parents)


def test_keywords_with_votes_are_drawn_and_put_into_the_prompt(ran):
    rng = np.random.default_rng(0)
    votes = np.concatenate([[80.0, 60.0, 40.0, 20.0], np.zeros(46)]) + rng.normal(0.0, 3.5, 50)
    shares = shares_by_label(votes, np.zeros(50, dtype=np.int64), 1)
    words = tuple(f"w{n}" for n in range(50))
    metadata = dpga.Metadata(200.0, np.ones(1), None, None, (words,), tuple(shares))
    drawn = Counter(metadata.draw_terms(0, rng)[0] for _ in range(500))
    assert sum(drawn[word] for word in words[4:]) < 0.25 * 500  # by the softmax of shares it is more than nine in ten

    asked, _, run, _ = ran("dpga", ["method.keywords=true", "method.keywords_per_label=5"])
    known = dict(run.records["keywords"][0][1])
    found = dict(zip(known, run.records["keyword shares"][0][1], strict=True))
    fresh = [request for _, request in asked if request.kind == "metadata"]
    assert len(fresh) > 10
    for request in fresh:
        (term,) = request.terms
        assert term in request.prompt
        assert found[request.label][known[request.label].index(term)] > 0.0


@pytest.mark.heavy
def test_keyword_generator_proposes_all_keywords(ran):
    options = ["method.keywords=true", "method.keywords_per_label=5"]
    asked, _, _, _ = ran("dpga", [*options, "method.keyword_generator=poor"])
    names = {kind: {name for name, request in asked if (request.kind == "keywords") == kind} for kind in (True, False)}
    assert names == {True: {"poor"}, False: {"good"}}
    assert {request.words for _, request in asked if request.kind == "keywords"} == {5}
    asked, _, _, _ = ran("dpga", options)
    assert {name for name, request in asked if request.kind == "keywords"} == {"good"}
    assert {name for name, _ in asked} == {"good", "poor"}
    with pytest.raises(ConfigurationError, match="keyword_generator: no generator is named 'nobody'"):
        dpga.plan(dpga.Options(keyword_generator="nobody"), Setting(("a",), ("one",)))
    assert dpga.Options().keywords_per_label == 50


@pytest.mark.heavy
@pytest.mark.parametrize("suppression", [True, False])
def test_elite_by_label_gives_each_label_its_share_of_the_elite(ran, suppression):
    _, _, run, _ = ran("dpga", [])
    population = [
        Sample(f"{n} {GOOD_WORDS[label]}", label, "good", 0, "metadata") for label in LABELS for n in range(9)
    ]
    votes = np.array([10.0 + n for n in range(9)] + [float(n) for n in range(9)])  # nobody of the second label wins
    for by_label, expected in ((True, {LABELS[0]: 4, LABELS[1]: 2}), (False, {LABELS[0]: 6})):
        options = dpga.Options(population=18, elite=6, suppression=suppression, elite_by_label=by_label)
        elite = dpga._elite(options, run, 1, population, votes, 1.0, np.array([0.7, 0.3]))
        assert Counter(sample.label for sample in elite) == expected


def test_every_label_with_texts_keeps_at_least_one_place():
    places = places_by_label(np.array([40, 40, 2, 0]), np.array([0.7, 0.3, 0.0, 0.0]), 20, least=1)
    assert places.tolist() == [13, 6, 1, 0]
    assert places_by_label(np.array([3, 1]), np.array([0.1, 0.9]), 9).tolist() == [3, 1]
    assert places_by_label(np.array([3, 3, 3]), np.array([0.5, 0.3, 0.2]), 2, least=1).tolist() == [1, 1, 0]


# DP-KPS


@pytest.mark.heavy
@pytest.mark.parametrize("named", [True, False])
def test_prompts_show_three_public_texts_of_each_class_without_naming_it(ran, tmp_path, named):
    """DP-KPS B.2.5: three of each class in every prompt; three of its own class only where the class is named."""
    rows = [{"text": f"{n} the {GOOD_WORDS[label]} is here", "label": label} for label in LABELS for n in range(5)]
    (tmp_path / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    label_of = {row["text"]: row["label"] for row in rows}
    options = ["method.shots=shots.jsonl", f"method.class_in_prompt={str(named).lower()}"]
    asked, samples, _, _ = ran("dpkps", options)
    assert len(samples) > 10
    shown = [request for _, request in asked if request.kind == "keyphrases"]
    for request in shown:
        found = Counter(label_of[text] for text in request.good)
        assert found == ({request.label: 3} if named else dict.fromkeys(LABELS, 3))
        for text in request.good:
            said = ", ".join(GOOD_WORDS[label_of[text]].split())
            assert f"Terms: {said}\n<example>\n{text}\n</example>" in request.prompt
    if not named:
        assert len({frozenset(request.good) for request in shown}) == 1
    (tmp_path / "shots.jsonl").write_text(json.dumps({"text": "nothing of it", "label": LABELS[0]}) + "\n")
    with pytest.raises(ConfigurationError, match=r"shots\.jsonl: no text of the label"):
        ran("dpkps", ["method.shots=shots.jsonl"])


def test_missing_shots_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.jsonl: no such file"):
        plan_run(write_task(tmp_path, shots="nowhere.jsonl"))


@pytest.mark.heavy
def test_aug_pe_puts_private_vocabulary_terms_into_the_first_prompts(ran):
    options = ["method.vocabulary=words.txt", "method.false_terms=1", "method.prompt_terms=2"]
    asked, samples, run, planned = ran("augpe", [*options, "method.private_vocabulary=true"])
    assert run.asked[0] == planned.plan.sums[0].name == "vocabulary"
    kept = set(run.records["keyphrases"][0][1])
    first = [request for _, request in asked if request.kind == "random"]
    assert len(first) > 10
    assert len({request.terms for request in first}) > 5
    for request in first:
        assert len(set(request.terms)) == 2
        assert set(request.terms) <= kept
        assert f"Let it be about: {', '.join(request.terms)}." in request.prompt
    assert all(not request.terms for _, request in asked if request.kind != "random")
    assert samples
    asked, _, run, _ = ran("augpe", options)
    assert not any(request.terms for _, request in asked)
    assert "vocabulary" not in run.asked


def test_aug_pe_s_vocabulary_takes_its_share_of_the_budget(tmp_path):
    (tmp_path / "words.txt").write_text("pan\noven\n")
    options = augpe.Options(private_vocabulary=True, vocabulary="words.txt", vocabulary_share=0.25, rounds=4)
    requests = augpe.plan(options, Setting(("a",), ("one",), tmp_path))
    total = sum(request.budget_share for request in requests)
    assert [request.budget_share / total for request in requests] == pytest.approx([0.25] * 4)


# The distilled discriminator


@pytest.mark.heavy
def test_persona_prompt_asks_for_an_author_400_words_and_no_names(ran):
    asked, _, _, _ = ran("discriminator", ["method.prompt=persona"])
    for _, request in asked:
        assert (request.kind, request.words) == ("persona", 400)
        assert "one particular person who could have written" in request.prompt
        assert "Use about 400 words." in request.prompt
        assert "Give no name" in request.prompt
    assert len({request.prompt for _, request in asked}) == len(asked) > 20  # each with hints of its own
    asked, _, _, _ = ran("discriminator", ["method.prompt=persona", "method.words=30"])
    assert {request.words for _, request in asked} == {30}
