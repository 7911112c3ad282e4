"""Presets follow the papers: values, noise and steps against computations of their own, written from the papers."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from tests.doubles.bench import Records, run_method
from tests.doubles.parties import embed
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.topic_writer import VOCABULARY, topic_writer
from undersong_common.errors import ConfigurationError
from undersong_common.table import read_table
from undersong_protocol.agreement.plan import Privacy, Quorum, plan_sums
from undersong_protocol.secagg.noise_share import noise_plan
from undersong_server import methods
from undersong_server.generators.interface import PromptFormat
from undersong_server.generators.orders import Order, Requests, shown_once
from undersong_server.methods import augpe, fusegen, pretext, wasp
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts import papers
from undersong_server.prompts.rendering import Prompts, TaskWords
from undersong_server.runs.plan_figures import plan_figures
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

ALONE = Quorum(1, 1, 0, 0)
PHI = NormalDist().cdf


def spent(mu: float, delta: float) -> float:
    """Epsilon of mu-Gaussian privacy at delta (Dong, Roth and Su 2022, Corollary 2.13), by bisection."""
    low, high = 0.0, 1e4
    for _ in range(200):
        epsilon = (low + high) / 2
        at = PHI(mu / 2 - epsilon / mu) - math.exp(min(epsilon, 700.0)) * PHI(-mu / 2 - epsilon / mu)
        low, high = (epsilon, high) if at > delta else (low, epsilon)
    return high


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Runs a preset over a writer of short texts without noise; the requests it got, its run, and its records."""
    asked = topic_writer(monkeypatch)
    (tmp_path / "words.txt").write_text("\n".join(VOCABULARY))

    def run(name: str, changes: list[str]):
        path = make_task(tmp_path, parties=1, records=40, samples=60)
        path.write_text(path.read_text().replace("samples = 60\n", "").replace("rounds = 3\n", ""))
        path.write_text(path.read_text().replace("votes = 3\n", ""))
        task = load(path, [f"method.name={name}", "privacy.epsilon=inf", "method.preset=paper", *changes])
        run_plan = plan_run(task)
        samples, made = run_method(task, run_plan, seed=3)
        table = read_table(task.files[0], "text", "label", labels=task.task.labels)
        return asked, samples, made, Records(table, LABELS)

    return run


def test_presets_hold_the_papers_values():
    """Each figure is typed here from the papers, not read from the tables."""
    paper = wasp.Options(preset="paper")
    assert (paper.samples, paper.rounds, paper.votes, paper.delta_iter) == (6000, 5, 8, 1e-5)
    assert paper.overlap
    assert paper.base_contrast
    assert wasp.Options(preset="paper", rounds=3).rounds == 3  # what is given wins
    one = augpe.Options(preset="paper")
    assert (one.population, one.rounds) == (6000, 5)
    other = augpe.Options(preset="dpga")
    assert other.population == 2000
    for module in (pretext, fusegen):
        assert (module.Options(preset="paper").samples, module.Options(preset="paper").rounds) == (6000, 5)


@pytest.mark.parametrize("name", ["wasp", "augpe", "pretext", "fusegen"])
def test_an_unknown_preset_is_refused_by_name(name, tmp_path):
    with pytest.raises(ConfigurationError, match="'papre'") as refused:
        load(make_task(tmp_path), [f"method.name={name}", "method.preset=papre"])
    assert "paper" in refused.value.remedy
    assert papers.sections(name, "paper")["prompts"] == {"variety": False, "near_duplicate": 1.0}
    assert not papers.forbidden(name, "paper")
    assert not papers.forbidden("mixture", "")


def test_a_task_names_the_values_that_it_changes(tmp_path):
    task = load(make_task(tmp_path), ["method.preset=paper"])
    (said,) = task.remarks
    assert "samples = 24, not 6000" in said
    assert not task.prompts.variety
    assert load(make_task(tmp_path), ["method.preset=paper", "prompts.variety=true"]).prompts.variety


@pytest.mark.parametrize("name", ["wasp", "augpe", "pretext", "fusegen"])
def test_presets_order_prompts_without_hints(ran, name):
    changes = {"augpe": ["method.corpus=20"]}.get(name, ["method.samples=40"])
    asked, samples, _, _ = ran(name, [*changes, "method.rounds=2"])
    assert samples
    assert asked
    assert all("let this shape it" not in request.prompt for _, request in asked)


# WASP


@pytest.mark.parametrize(
    ("epsilon", "delta_iter", "sigma"), [(4.0, 1e-5, 9.69), (4.0, 1e-23, 20.63), (1.0, 1e-5, 38.8)]
)
def test_wasp_s_noise_is_theorem_d_4_s(tmp_path, epsilon, delta_iter, sigma):
    """sigma = 4 sqrt(2 ln(1.25 / delta_iter)) sqrt(T - 1) / epsilon; five votes of sensitivity 1.633 are paid for."""
    expected = 4 * math.sqrt(2 * math.log(1.25 / delta_iter)) * math.sqrt(5 - 1) / epsilon
    assert expected == pytest.approx(sigma, rel=0.002)
    changes = ["method.preset=paper", "method.rounds=5", "method.votes=8", f"privacy.epsilon={epsilon}"]
    run_plan = plan_run(load(make_task(tmp_path), [*changes, f"method.delta_iter={delta_iter}", "privacy.delta=1e-5"]))
    assert [one.sigma for one in run_plan.plan.sums] == pytest.approx([expected] * 5)
    squares = sum(4.0**-q for q in range(8))
    exact = math.sqrt(2 * squares)
    figures = plan_figures(run_plan).to_json()["paper"]
    assert figures["sigma"] == pytest.approx(expected)
    assert figures["epsilon_really_spent"] == pytest.approx(spent(math.sqrt(5) * exact / expected, 1e-5), rel=1e-3)
    assert figures["epsilon_of_accounted_votes"] == pytest.approx(spent(2 * exact / expected, 1e-5), rel=1e-3)
    assert run_plan.plan.epsilon() == pytest.approx(figures["epsilon_really_spent"], rel=1e-3)
    if sigma == 9.69:
        assert figures["epsilon_really_spent"] == pytest.approx(1.456, abs=0.001)
        assert figures["epsilon_of_accounted_votes"] == pytest.approx(1.287, abs=0.001)


def test_each_of_ten_parties_adds_the_noise_of_algorithm_2():
    """Line 2 of Algorithm 2: sigma / sqrt(L), all L parties taking part."""
    setting = Setting(LABELS, ("one",), privacy=Privacy(4.0, 1e-5), quorum=Quorum(10, 10, 0, 0))
    planned = plan_sums(wasp.plan(wasp.Options(preset="paper"), setting), setting.privacy, setting.quorum)["votes/1"]
    own = math.sqrt(noise_plan(planned.drawn_sigma_integer, 10, 0, 0).components[0]) / planned.scale
    assert own == pytest.approx(4 * math.sqrt(2 * math.log(1.25e5)) * 2 / (4 * math.sqrt(10)), rel=1e-3)
    assert own == pytest.approx(3.06, abs=0.01)


def test_user_level_noise_is_eight_times_as_large():
    """App. E.4: sensitivity 32 where a party has at most eight records."""
    privacy = Privacy(4.0, 1e-5, "party", max_per_unit=8, contribution="sum")
    setting = Setting(LABELS, ("one",), privacy=privacy)
    planned = plan_sums(wasp.plan(wasp.Options(preset="paper"), setting), privacy, ALONE)["votes/1"]
    assert planned.sigma == pytest.approx(32 * math.sqrt(2 * math.log(1.25e5)) * 2 / 4)


def test_wasp_follows_algorithm_1_without_noise(ran):
    """Lines 7 to 10 anew, record by record, from Eq. 3 to 8: weights of every round, and what its prompts may show."""
    changes = ["method.samples=60", "method.rounds=3", "method.shortlist=4", "method.examples=4"]
    asked, samples, run, records = ran("wasp", changes)
    private = embed(records.texts)
    weights = dict(run.records["weights"])
    assert weights[0] == [0.5, 0.5]
    for t in (1, 2):
        corpus = [sample for sample in samples if sample.round < t]
        vectors = embed([sample.text for sample in corpus])
        near, far = np.zeros(len(corpus)), np.zeros(len(corpus))
        for z, label in zip(private, records.labels, strict=True):
            same = [i for i, sample in enumerate(corpus) if sample.label == LABELS[label]]
            by_distance = sorted(same, key=lambda i: (np.linalg.norm(z.astype(float) - vectors[i].astype(float)), i))
            for q in range(8):
                near[by_distance[q]] += 2.0**-q
                far[by_distance[-1 - q]] += 2.0**-q
        score = near / near.sum()
        of = [np.array([sample.generator == name for sample in corpus]) for name in run.setting.generators]
        ratio = np.array([score[mine].sum() / (mine.sum() / len(corpus)) for mine in of])
        assert weights[t] == pytest.approx(ratio / ratio.sum(), rel=1e-6)
        shown = {"good": {}, "bad": {}}
        for label in LABELS:
            members = [i for i, sample in enumerate(corpus) if sample.label == label]
            for kind, votes in (("good", near), ("bad", far)):
                best = sorted(members, key=lambda i, votes=votes: -votes[i])[:4]
                shown[kind][label] = {corpus[i].text for i in best}
        later = [request for _, request in asked if request.kind == "contrast"]
        wrote = {sample.text for sample in samples if sample.round == t}
        mine = [request for request in later if any(str(request.seed) in text for text in wrote)]
        assert mine
        for request in mine:
            assert set(request.good) <= shown["good"][request.label]
            assert set(request.bad) <= shown["bad"][request.label]
            assert len(request.good) == 2
    assert run.asked == ["votes/1", "votes/2", "votes/3"]  # the loop votes in the last round too


def test_base_models_are_shown_bad_examples_by_the_preset_alone():
    prompts = Prompts(TaskWords(description="a note", labels=LABELS), variety=False)
    texts = {"good": ("g one", "g two"), "bad": ("b one", "b two")}
    for shows in (True, False):
        order = Order("g", "contrast", LABELS[0], **texts, bad_continued=shows)
        made, _ = Requests(prompts, {"g": PromptFormat(style="completion")}, seed=1).make("s", [order], [0], [1])
        assert all((text in made[0].prompt) == shows for text in (*texts["bad"], *texts["good"]))
        assert made[0].prompt.endswith('"')
        assert ("Bad example" in made[0].prompt) == shows
    assert shown_once(Order("g", "contrast", bad=("b",), bad_continued=True), "completion").bad == ()


# Baselines


def test_dp_kps_s_aug_pe_writes_a_tenth_of_its_prompts_and_never_names_the_class(ran):
    """DP-KPS B.1.3 and section 3: B / 10 texts of ten sequential prompts each, no class in any of them."""
    options = augpe.Options(preset="dpkps", samples=1000)
    assert options.population == 100
    assert augpe.generator_calls(options, Setting(LABELS, ("one",))) == 1000
    changes = ["method.preset=dpkps", "method.samples=200", "method.vocabulary=words.txt"]
    asked, samples, _, _ = ran("augpe", changes)
    assert {sample.label for sample in samples} == set(LABELS)
    for _, request in asked:
        assert request.label == ""
        assert all(label not in request.prompt for label in LABELS)


def test_aug_pe_s_vocabulary_has_laplace_noise_of_its_own_epsilon(tmp_path):
    """S = 10 terms of a document: Laplace noise of scale S / eps_voc = 10, deviation 14.14; votes get what is left."""
    (tmp_path / "words.txt").write_text("\n".join("abcdefghijkl"))
    options = augpe.Options(preset="dpkps", samples=100, vocabulary="words.txt")
    setting = Setting(LABELS, ("one",), tmp_path)
    planned = plan_sums(augpe.plan(options, setting), Privacy(6.0, 1e-5), ALONE)
    assert planned["vocabulary"].law == "laplace"
    assert planned["vocabulary"].sigma == pytest.approx(math.sqrt(2) * 10)
    assert planned.epsilon() == pytest.approx(6.0, rel=1e-3)
    assert methods.load("augpe").Options(vocabulary="words.txt").law == "gaussian"
