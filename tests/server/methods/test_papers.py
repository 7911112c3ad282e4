"""Presets follow the papers: values, noise and steps against computations of their own, written from the papers."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles.bench import Records, run_method
from tests.doubles.pace import slow_after
from tests.doubles.parties import embed
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.topic_writer import VOCABULARY, topic_writer
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.text.table import read_table
from undersong_protocol.agreement import bounds
from undersong_protocol.agreement.plan import Privacy, Quorum, plan_sums
from undersong_protocol.secagg.noise_share import noise_plan
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import teachers
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.terms import TermHistogram
from undersong_protocol.wire.public import decode_block, encode_texts
from undersong_server import methods
from undersong_server.generators.interface import PromptFormat
from undersong_server.generators.orders import Order, Requests, shown_once
from undersong_server.methods import augpe, discriminator, dpga, dpkps, fusegen, pretext, wasp
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts import papers
from undersong_server.methods.parts.keyphrases import Densities, english_words, significant_terms
from undersong_server.methods.parts.metadata import shares_by_label
from undersong_server.methods.parts.selection import mean_similarity
from undersong_server.prompts.rendering import Prompts, TaskWords
from undersong_server.runs.planning import coordinator_task, plan_figures, plan_run
from undersong_server.runs.task import load

pytestmark = pytest.mark.heavy

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
        asked.clear()
        task = load(path, [f"method.name={name}", "privacy.epsilon=inf", "method.preset=paper", *changes])
        run_plan = plan_run(task)
        samples, made = run_method(task, run_plan, seed=3)
        table = read_table(task.files[0], "text", "label", labels=task.task.labels)
        return asked, samples, made, Records(table, LABELS)

    return run


def test_method_presets_have_the_papers_values():
    """Each figure is typed here from the papers, not read from the tables."""
    paper = wasp.Options(preset="paper")
    assert (paper.samples, paper.rounds, paper.votes, paper.delta_iter) == (6000, 5, 8, 1e-5)
    assert paper.overlap
    assert paper.base_contrast
    assert wasp.Options(preset="paper", rounds=3).rounds == 3  # what is given wins
    one = augpe.Options(preset="paper")
    assert (set(one.populations), one.rounds) == ({6000}, 5)
    other = augpe.Options(preset="dpga")
    assert set(other.populations) == {2000}
    for preset in ("paper", "pubmed"):
        genetic = dpga.Options(preset=preset)
        assert (genetic.population, genetic.elite, genetic.rounds, genetic.sampling) == (10_000, 2_000, 10, 0.8)
        assert (genetic.length_bins, genetic.keywords_per_label, genetic.keyword_answers) == (100, 50, 1)
        assert [round(8_000 * part) for part in genetic.operators] == [2000] * 4
    with_curator, federated = (dpga.Options(preset=preset).model_dump() for preset in ("paper", "federated"))
    assert {key for key in with_curator if with_curator[key] != federated[key]} == {"preset", "curator"}
    wiki, mimic = dpkps.Options(preset="paper"), dpkps.Options(preset="mimic")
    assert (wiki.sampler, wiki.texts(Setting(tuple("abc"), ("one",)))) == ("iterative", 3000)
    assert (mimic.sampler, mimic.texts(Setting(tuple("ab"), ("one",)))) == ("independent", 3000)
    for keyphrases in (wiki, mimic):
        assert (keyphrases.document_terms, keyphrases.keyphrases, keyphrases.length) == (10, 1000, 10)
        assert (keyphrases.split, keyphrases.false_terms, keyphrases.sharpness) == ((1.0, 5.0), 1.0, 1.0)
    assert (wiki.highest, mimic.highest) == (100, None)
    song = discriminator.Options(preset="paper")
    assert (song.kept, song.words, song.tutor_epsilon, song.student_rate, song.teachers) == (3750, 400, 0.4, 2e-5, 1)
    assert papers.sections("discriminator", "paper")["federation"] == {"parties": 15}
    for module in (pretext, fusegen):
        assert (module.Options(preset="paper").samples, module.Options(preset="paper").rounds) == (6000, 5)


def test_federation_accepts_dpga_only_with_the_federated_preset(tmp_path):
    path = make_task(tmp_path)
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    data["method"] = {"name": "dpga", "preset": "federated", "population": 60, "elite": 12}
    roster = ("alder", "beech", "cedar")
    data["federation"] = {"parties": 3}
    plan = plan_run(coordinator_task(data, tmp_path, roster)).plan
    by_name = {planned.name: planned for planned in plan.sums}
    assert [by_name[name].law for name in ("length range", "metadata/length")] == ["laplace", "laplace"]
    assert all(planned.sigma > 0.0 for planned in plan.sums)
    assert plan.privacy.epsilon == data["privacy"]["epsilon"]
    data["method"]["preset"] = "paper"
    with pytest.raises(ConfigurationError, match="not private here"):
        coordinator_task(data, tmp_path, roster)


@pytest.mark.parametrize("name", ["wasp", "dpga", "dpkps", "discriminator", "augpe", "pretext", "fusegen"])
def test_an_unknown_preset_is_refused_by_name(name, tmp_path):
    with pytest.raises(ConfigurationError, match="'papre'") as refused:
        load(make_task(tmp_path), [f"method.name={name}", "method.preset=papre"])
    assert "paper" in refused.value.remedy
    assert papers.sections(name, "paper")["prompts"] == {"variety": False, "near_duplicate": 1.0}
    assert len(papers.forbidden(name, "paper")) == {"dpga": 1, "discriminator": 2}.get(name, 0)
    assert not papers.forbidden("mixture", "")


def test_task_remarks_name_the_preset_values_that_it_overrides(tmp_path):
    task = load(make_task(tmp_path), ["method.preset=paper"])
    (said,) = task.remarks
    assert "samples = 24, not 6000" in said
    assert not task.prompts.variety
    assert load(make_task(tmp_path), ["method.preset=paper", "prompts.variety=true"]).prompts.variety


def test_command_line_overrides_preset_and_preset_overrides_the_file(tmp_path):
    path = make_task(tmp_path, federation={"parties": 5}, evaluation={"epochs": 4})
    song = ["method.name=discriminator", "method.preset=paper"]
    task = load(path, song)
    assert task.parties == 15  # a curator pools the files of three hospitals
    assert "federation.parties = 15, not 5" in task.remarks[1]
    assert task.remarks[1].startswith("the preset 'paper' replaces")
    changed = load(path, [*song, "federation.parties=5"])
    assert changed.parties == 5
    assert any(
        remark.startswith("the task changes") and "federation.parties = 5, not 15" in remark
        for remark in changed.remarks
    )
    assert not any("replaces" in remark for remark in changed.remarks)
    dpga_task = load(path, ["method.name=dpga", "method.preset=paper"])
    assert any("evaluation.epochs = 10, not 4" in remark for remark in dpga_task.remarks)
    two = load(path, ["method.name=dpga", "method.preset=paper", "evaluation.epochs=2"])
    assert any("evaluation.epochs = 2, not 10" in remark for remark in two.remarks)


@pytest.mark.parametrize("name", slow_after(["wasp", "dpga", "dpkps", "augpe", "pretext", "fusegen"], 3))
def test_presets_switch_variety_hints_in_prompts_off(ran, name):
    changes = {"augpe": ["method.corpus=20", "method.rounds=2"], "dpga": SMALL, "dpkps": WORDS}
    asked, samples, _, _ = ran(name, changes.get(name, ["method.samples=40", "method.rounds=2"]))
    assert samples
    assert asked
    assert all("let this shape it" not in request.prompt for _, request in asked)


# WASP


@pytest.mark.parametrize(
    ("epsilon", "delta_iter", "sigma"), [(4.0, 1e-5, 9.69), (4.0, 1e-23, 20.63), (1.0, 1e-5, 38.8)]
)
def test_wasp_noise_is_that_of_theorem_d_4(tmp_path, epsilon, delta_iter, sigma):
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


def test_wasp_noise_of_each_of_ten_parties_is_that_of_algorithm_2():
    """Line 2 of Algorithm 2: sigma / sqrt(L), all L parties taking part."""
    setting = Setting(LABELS, ("one",), privacy=Privacy(4.0, 1e-5), quorum=Quorum(10, 10, 0, 0))
    planned = plan_sums(wasp.plan(wasp.Options(preset="paper"), setting), setting.privacy, setting.quorum)["votes/1"]
    own = math.sqrt(noise_plan(planned.drawn_sigma_integer, 10, 0, 0).components[0]) / planned.scale
    assert own == pytest.approx(4 * math.sqrt(2 * math.log(1.25e5)) * 2 / (4 * math.sqrt(10)), rel=1e-3)
    assert own == pytest.approx(3.06, abs=0.01)


def test_epsilon_by_one_partys_own_noise_equals_the_figure_in_docs_wasp_md():
    """The program: four vectors of each of five votes, its share of 3.23. The paper's: five, its share of 3.06."""
    setting = Setting(LABELS, ("one",), privacy=Privacy(4.0, 1e-5), quorum=Quorum(10, 6, 1, 1))
    planned = plan_sums(wasp.plan(wasp.Options(preset="paper"), setting), setting.privacy, setting.quorum)
    l2 = math.sqrt(2 * sum(4.0**-q for q in range(8)))
    assert spent(math.sqrt(5 * 4) * l2 / 3.23, 1e-5) == pytest.approx(planned.epsilon_if_all_others_collude(), rel=1e-3)
    assert planned.epsilon_if_all_others_collude() == pytest.approx(11.6, abs=0.05)
    assert spent(math.sqrt(5) * l2 / (9.69 / math.sqrt(10)), 1e-5) == pytest.approx(5.4, abs=0.05)


def test_wasp_s_noise_for_users_is_eight_times_that_for_one_record():
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
        author = {sample.text: sample.generator for sample in corpus}
        for name in run.setting.generators:  # 4.4, 4.6: every model is shown examples that any of them wrote
            seen = {author[t] for who, r in asked if who == name and r in mine for t in (*r.good, *r.bad)}
            assert seen == set(run.setting.generators)
        for request in mine:
            assert set(request.good) <= shown["good"][request.label]
            assert set(request.bad) <= shown["bad"][request.label]
            assert len(request.good) == 2
    assert run.asked == ["votes/1", "votes/2", "votes/3"]  # the loop votes in the last round too


def test_base_model_prompts_show_bad_examples_only_under_the_preset():
    prompts = Prompts(TaskWords(description="a note", labels=LABELS), variety=False)
    texts = {"good": ("g one", "g two"), "bad": ("b one", "b two")}
    for shows in (True, False):
        order = Order("g", "contrast", LABELS[0], **texts, bad_continued=shows)
        made, _ = Requests(prompts, {"g": PromptFormat(style="completion")}, seed=1).make("s", [order], [0], [1])
        assert all((text in made[0].prompt) == shows for text in (*texts["bad"], *texts["good"]))
        assert made[0].prompt.endswith('"')
        assert ("Bad example" in made[0].prompt) == shows
    assert shown_once(Order("g", "contrast", bad=("b",), bad_continued=True), "completion").bad == ()


# DPGA-TextSyn

N = 8396
DELTA = 1 / (N * math.log(N))


def analytic_gaussian(epsilon, delta):
    """Sigma at sensitivity 1 by Lemma B.3, by bisection."""
    low, high = 1e-3, 1e3
    for _ in range(200):
        sigma = math.sqrt(low * high)
        at = PHI(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * PHI(-0.5 / sigma - epsilon * sigma)
        low, high = (sigma, high) if at > delta else (low, sigma)
    return high


FIGURES = [(1.0, 18.37, 17.566), (2.0, 10.11, 9.389), (4.0, 5.65, 5.079)]


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "sigma", "exact"), FIGURES)
def test_dpga_s_votes_have_the_noise_of_its_formulas(tmp_path, epsilon, sigma, exact):
    """4.2 with D.3's half of epsilon, written out; Laplace histograms of scale 1 / (0.1 epsilon)."""
    whole = math.log(1 + (math.exp(0.5 * epsilon) - 1) / 0.8)
    expected = math.sqrt(10) * analytic_gaussian(whole, DELTA / 0.8)
    assert expected == pytest.approx(sigma, abs=0.005)
    changes = ["method.name=dpga", "method.preset=paper", f"privacy.epsilon={epsilon}", f"privacy.delta={DELTA}"]
    path = make_task(tmp_path)
    path.write_text(path.read_text().replace("samples = 24\n", "").replace("rounds = 3\n", ""))
    run_plan = plan_run(load(path, changes))
    plan = run_plan.plan
    assert [plan[f"votes/{t}"].sigma for t in range(1, 11)] == pytest.approx([expected] * 10, rel=1e-4)
    for name in ("label", "length", "keyword"):
        assert plan[f"metadata/{name}"].sigma == pytest.approx(math.sqrt(2) / (0.1 * epsilon))
    assert plan["length range"].sigma == 0.0  # of a curator, who opens nothing but the two ends of the range
    assert "similarity" not in {one.name for one in plan.sums}
    figures = plan_figures(run_plan).to_json()["paper"]
    assert figures["sigma"] == pytest.approx(sigma, abs=0.005)
    assert figures["sigma_accounted_exactly"] == pytest.approx(exact, rel=0.002)
    assert figures["epsilon_really_spent"] < epsilon


@pytest.mark.slow
@pytest.mark.parametrize("changes", [[], ["method.length=false"], ["method.keywords=false"]])
def test_dpga_plan_states_the_epsilon_that_its_mechanisms_spend(tmp_path, changes):
    path = make_task(tmp_path)
    path.write_text(path.read_text().replace("samples = 24\n", "").replace("rounds = 3\n", ""))
    preset = ["method.name=dpga", "method.preset=paper", "method.curator=false", "privacy.epsilon=4.0"]
    run_plan = plan_run(load(path, [*preset, *changes]))
    figures = plan_figures(run_plan).to_json()["paper"]
    assert figures["epsilon_really_spent"] == pytest.approx(run_plan.plan.epsilon(), rel=2e-3)


def test_coordinator_refuses_a_non_private_preset_naming_its_steps(tmp_path):
    path = make_task(tmp_path)
    task = load(path, ["method.name=dpga", "method.preset=paper", "privacy.epsilon=2.0"])
    judged = task.evaluation
    assert (judged.epochs, judged.batch, judged.learning_rate, judged.max_tokens) == (10, 64, 3e-5, 512)  # D.2
    assert (task.privacy.epsilon, task.options.stated_epsilon) == (math.inf, 2.0)
    said = [remark for remark in task.remarks if remark.startswith(tuple(papers.NOT_PRIVATE.values()))]
    assert [remark.partition(":")[0] for remark in said] == [papers.NOT_PRIVATE["curator"]]
    assert "one curator holds all records" in said[0]
    data = task.model_dump(mode="python", exclude={"folder"})
    with pytest.raises(ConfigurationError, match=r"AboveThreshold") as refused:
        coordinator_task(data, tmp_path, ["a", "b", "c"])
    assert refused.value.code == "not-private"
    with pytest.raises(ConfigurationError) as refused:  # nor without the preset's name
        plan_run(load(path, ["method.name=dpga", "method.curator=true", "method.accounting=paper"]))
    assert refused.value.code == "not-private"


def test_party_refuses_a_plan_that_claims_less_epsilon_than_it_spends(tmp_path):
    """No party reads a method's name: what it is charged follows from the plan's sums, which it computes anew."""
    plan = plan_run(load(make_task(tmp_path), ["method.name=dpga", "method.preset=paper", "privacy.epsilon=2.0"])).plan
    roster = [Member(name, bytes(32)) for name in ("a", "b", "c")]
    with pytest.raises(PrivacyRefusal, match="epsilon inf"):
        bounds.check(plan, roster, bounds.Policy(largest_epsilon=1e6, largest_delta=1.0))
    plan.verify()  # without noise some of its sums cost what nobody can afford
    for claimed in (2.0, 1e6):
        with pytest.raises(PrivacyRefusal):
            replace(plan, privacy=replace(plan.privacy, epsilon=claimed)).verify()


@pytest.mark.slow
def test_above_threshold_stops_with_the_probability_of_its_laplace_noise():
    """A query of 3 against threshold 0 stops if 3 + Lap(4 / e) <= Lap(2 / e): integrated over the densities."""
    epsilon, runs = 0.8, 40_000
    rng = np.random.default_rng(0)
    stopped = sum(dpga.above_threshold(np.array([3.0, -1e9]), epsilon, rng) == 0 for _ in range(runs))
    grid = np.linspace(-80, 80, 160_001)
    answers = np.exp(-np.abs(grid) * epsilon / 4) * epsilon / 8
    at = grid + 3.0
    above = np.where(at > 0, 0.5 * np.exp(-np.abs(at) * epsilon / 2), 1 - 0.5 * np.exp(-np.abs(at) * epsilon / 2))
    expected = float((answers * above).sum() * (grid[1] - grid[0]))
    assert stopped / runs == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / runs))
    counts = np.bincount([4, 5, 5, 7, 9], minlength=20).astype(float)
    assert dpga.find_curators_length_range(counts, None, rng) == (4, 10)  # half open: of lengths 4 to 9


def test_keywords_are_drawn_by_the_softmax_of_their_noisy_votes():
    votes = np.array([2.0, 1.0, -0.5, 7.0])
    first, second = shares_by_label(votes, np.array([0, 0, 0, 1]), 2, softmax=True)
    total = sum(math.exp(vote) for vote in votes[:3])
    assert first == pytest.approx([math.exp(vote) / total for vote in votes[:3]])
    assert second.tolist() == [1.0]


def test_dpga_tau_is_the_mean_of_the_off_diagonal_similarities():
    vectors = embed([f"text {n}" for n in range(12)]).astype(float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [vectors[i] @ vectors[j] for i in range(12) for j in range(12) if i != j]
    assert mean_similarity(vectors.sum(axis=0), 0.0, 12.0, 0.0).value == pytest.approx(np.mean(pairs), abs=1e-9)


SMALL = ["method.population=24", "method.elite=8", "method.rounds=2", "method.embedding_size=48"]


def test_dpga_s_corpus_is_its_last_elite(ran):
    _, samples, run, _ = ran("dpga", SMALL)
    assert [sample.text for sample in samples] == dict(run.records["elite"])[2]
    assert len(samples) == 8
    assert run.ordered == 1 + 24 + 16  # keywords, the first population, the offspring of the first elite
    assert run.ordered == dpga.generator_calls(
        dpga.Options(preset="paper", population=24, elite=8, rounds=2), run.setting
    )


@pytest.mark.parametrize("off", ["length", "keywords"])
def test_dpga_ablations_change_only_the_prompts_of_the_first_population(ran, off):
    """5.3: no length, or no keyword, when the initial samples are written; fresh offspring (3.4.3) have both."""
    asked, _, run, _ = ran("dpga", [*SMALL, f"method.{off}=false"])
    whole = dpga.Options(preset="paper", population=24, elite=8, rounds=2)
    assert run.ordered == dpga.generator_calls(whole, run.setting)
    fresh = [request for _, request in asked if request.kind == "metadata"]
    assert len(fresh) == 24 + 4
    has = [bool(request.words if off == "length" else request.terms) for request in fresh]
    assert (sum(has), has.count(False)) == (4, 24)
    assert all(request.terms if off == "length" else request.words for request in fresh)
    assert all(request.words for _, request in asked if request.parents)
    assert {"metadata/length", "metadata/keyword"} <= set(run.asked)


def test_dpga_asks_once_for_the_keywords_of_all_labels(ran):
    asked, _, run, _ = ran("dpga", SMALL)
    (request,) = [request for _, request in asked if request.kind == "keywords_by_label"]
    assert all(label in request.prompt for label in LABELS)
    assert request.words == 50
    assert set(dict(run.records["keywords"][0][1])) == set(LABELS)


def test_dpga_operators_are_those_of_the_papers_section_3_4(ran):
    asked, _, run, _ = ran("dpga", SMALL)
    elite = set(dict(run.records["elite"])[1])
    crossed = [request for _, request in asked if request.kind == "cross"]
    assert all(set(request.parents) <= elite and request.terms for request in crossed)
    of = {sample.text: sample.label for sample in run.pool.samples}
    assert any(len({of[parent] for parent in request.parents}) == 2 for request in crossed)  # mates of any label
    assert not [request for _, request in asked if request.kind == "rewrite"]
    asked.clear()
    asked, _, _, _ = ran("dpga", [*SMALL, "method.preset=pubmed"])
    assert not [request for _, request in asked if request.kind == "cross" and request.terms]
    assert {request.kind for _, request in asked if request.parents} == {"rewrite", "fill_in", "cross"}


# DP-KPS

WORDS = ["method.vocabulary=words.txt", "method.per_class=12", "method.pairs=16", "method.length=3"]


@pytest.mark.parametrize(("epsilon", "split"), [(6.0, (1.0, 5.0)), (15.0, (5.0, 10.0))])
def test_dp_kps_s_noise_is_laplace_of_its_two_parts(tmp_path, epsilon, split):
    """A.1: scale S / eps_voc. A.2: eps_kde in ceil(log2 10) = 4 equal parts, each of 512 pairs. Pure epsilon."""
    (tmp_path / "words.txt").write_text("\n".join("abcdefghijkl"))
    options = dpkps.Options(preset="paper", vocabulary="words.txt", split=split)
    requests = dpkps.plan(options, Setting(LABELS, ("one",), tmp_path))
    assert (requests[1].statistic.lengths, requests[1].statistic.weights) == ((2, 4, 8, 16), (1.0,) * 4)
    planned = plan_sums(requests, Privacy(epsilon, 1e-12), ALONE)
    assert planned["vocabulary"].sigma == pytest.approx(math.sqrt(2) * 10 / split[0], rel=0.01)
    assert planned["densities"].sigma == pytest.approx(math.sqrt(2) * 4 * math.sqrt(2) * 512 / split[1], rel=0.01)
    assert planned.epsilon() <= epsilon


def test_dp_kps_s_vocabulary_fits_into_a_published_block():
    """400 000 words, as GloVe has; the parties read them in one block."""
    words = tuple(f"word{n}" for n in range(dpkps.Options(preset="paper").vocabulary_words))
    assert decode_block(encode_texts(words)).texts[-1] == "word399999"


def test_dpkps_default_vocabulary_has_291617_words():
    preset = dpkps.Options(preset="paper")
    kept = english_words(preset.vocabulary_words, preset.common_words)
    assert len(kept) == 291_617
    assert "school" in kept
    assert not any(letter.isdigit() for word in kept for letter in word)


def test_dpkps_vocabulary_counts_the_first_ten_terms_with_repeats():
    """A.1 counted by hand; the N highest counts stay, whatever they are."""
    terms = ["heart", "heart failure", "pain", "rash"]
    texts = ["pain pain heart pain rash", "Heart failure, heart; rash rash", "nothing"]
    statistic = TermHistogram(vocabulary=4, distinct=3, repeats=True)
    expected = np.array([[1, 0, 2, 0], [1, 1, 0, 1], [0, 0, 0, 0]])
    for text, row in zip(texts, expected, strict=True):
        found = re.findall(r"heart failure|heart|pain|rash", text.lower())[:3]
        assert [found.count(term) for term in terms] == row.tolist()
    public = PublicInputs(texts={"vocabulary": tuple(terms)})
    records = SimpleNamespace(texts=texts, units=np.arange(3))
    assert statistic.rows(records, public, {}).take(np.arange(3)).toarray().tolist() == expected.tolist()
    assert (statistic.sensitivity.l1, statistic.sensitivity.l2, statistic.sensitivity.linf) == (3.0, 3.0, 3.0)
    kept = significant_terms(np.array([3.0, -2.0, 9.0, 0.5]), 5.0, most=3, false_share=1.0, law="laplace")
    assert kept.tolist() == [2, 0, 3]


@pytest.mark.parametrize(
    ("sampler", "ensemble", "phrases", "u"),
    [("independent", "logarithmic", 1, 1.0), ("iterative", "linear", 3, 1 / 3), ("iterative", "logarithmic", 4, 2 / 4)],
)
def test_dpkps_kernel_bandwidth_follows_the_ensemble_structure(sampler, ensemble, phrases, u):
    """A.2: exp(-u |x - y|^2) on l concatenated unit vectors: u = 1, 1/l (linear), 2/L' (logarithmic)."""
    options = dpkps.Options(preset="paper", sampler=sampler, ensemble=ensemble, length=4, pairs=8192)
    statistic = options.features(Setting(("a",), ("one",)))
    terms = [f"term{n}" for n in range(8)]
    vectors = embed(terms)
    text = " ".join(terms[:phrases] if sampler == "independent" else terms[:4])
    public = PublicInputs(
        texts={"terms": tuple(terms)}, embeddings={"terms": LabelledEmbeddings(vectors, np.full(8, -1))}
    )
    records = SimpleNamespace(texts=[text], units=np.zeros(1, dtype=np.int64), labels=np.zeros(1, dtype=np.int64))
    sums = np.asarray(statistic.rows(records, public, {}).take(np.arange(1)).sum(axis=0)).ravel()
    query = np.arange(8 - phrases, 8)
    distance = sum(((vectors[i].astype(float) - vectors[j]) ** 2).sum() for i, j in enumerate(query))
    found = Densities(statistic, sums, vectors).of_prefixes(0, query[None, :])[0]
    assert found == pytest.approx(math.exp(-u * distance), abs=0.05)


def test_sequences_are_drawn_in_proportion_to_the_density_with_repeats():
    options = dpkps.Options(preset="mimic", length=2, pairs=64)
    statistic = options.features(Setting(("a",), ("one",)))
    vectors = embed([f"term {n}" for n in range(6)])
    sums = np.random.default_rng(0).normal(size=statistic.dimension)
    densities = Densities(statistic, sums, vectors, repeats=options.repeats)
    drawn = densities.independent(0, 30_000, 2, np.random.default_rng(1), sharpness=options.sharpness)
    positive = np.maximum(densities.of_terms(0), 0.0)
    expected = positive / positive.sum()
    for position in range(2):
        assert np.bincount(drawn[:, position], minlength=6) / 30_000 == pytest.approx(expected, abs=0.015)
    assert (drawn[:, 0] == drawn[:, 1]).mean() == pytest.approx((expected**2).sum(), abs=0.015)
    iterative = dpkps.Options(preset="paper", length=2, pairs=64)
    statistic = iterative.features(Setting(("a",), ("one",)))
    assert statistic.lengths == (2,)
    sums = np.random.default_rng(2).normal(size=statistic.dimension)
    densities = Densities(statistic, sums, vectors, repeats=iterative.repeats)
    drawn = densities.iterative(0, 30_000, 2, np.random.default_rng(3), sharpness=iterative.sharpness)
    first = np.maximum(densities.of_prefixes(0, np.arange(6)[:, None]), 0.0)
    assert np.bincount(drawn[:, 0], minlength=6) / 30_000 == pytest.approx(first / first.sum(), abs=0.015)
    most = int(first.argmax())
    then = np.maximum(densities.of_prefixes(0, np.array([[most, term] for term in range(6)])), 0.0)
    after = drawn[drawn[:, 0] == most, 1]
    assert np.bincount(after, minlength=6) / len(after) == pytest.approx(then / then.sum(), abs=0.03)


# The private discriminator

SONG = ["method.name=discriminator", "method.preset=paper", "method.queries=8", "method.contrast=8"]


def song_task(tmp_path, *changes):
    path = make_task(tmp_path)
    document = path.read_text().replace('"private"', '"good.jsonl"').replace("samples = 24\n", "samples = 60\n")
    path.write_text("\n".join(line for line in document.splitlines() if not line.startswith(("rounds", "votes", "ex"))))
    return load(path, [*SONG, *changes])


def test_song_s_noise_is_two_analytic_gaussians(tmp_path):
    """Lemma 4 at (0.4, delta / 2) and (3.6, delta / 2), sensitivity sqrt(2); one answer's noise on every query."""
    plan = plan_run(song_task(tmp_path, "privacy.epsilon=4.0", "privacy.delta=1e-5")).plan
    tutor, answer = (math.sqrt(2) * analytic_gaussian(epsilon, 5e-6) for epsilon in (0.4, 3.6))
    assert answer == pytest.approx(1.731, abs=0.001)
    assert math.sqrt(2) * analytic_gaussian(3.6, 1e-5) == pytest.approx(1.676, abs=0.001)
    assert plan["labels"].sigma == pytest.approx(tutor, rel=1e-3)
    assert plan["teachers"].sigma == pytest.approx(answer / math.sqrt(2), rel=1e-3)  # one scalar for two counts
    assert math.isinf(plan.privacy.epsilon)
    assert plan["teachers"].parameters["teachers"] == 1
    assert plan.quorum.parties == 15
    queries = discriminator.Options(preset="paper").queries
    figures = discriminator.paper_figures(Privacy(4.0, 1e-5), queries, 0.4)
    assert figures["sigma"] == pytest.approx(answer, rel=1e-3)
    assert figures["epsilon_really_spent"] == pytest.approx(
        spent(math.sqrt(queries) * math.sqrt(2) / answer, 1e-5), rel=0.01
    )
    assert (queries, round(figures["epsilon_really_spent"])) == (400, 202)  # methods/papers/discriminator.toml


def test_song_s_preset_is_refused_by_a_coordinator_naming_its_steps(tmp_path):
    data = song_task(tmp_path).model_dump(mode="python", exclude={"folder"})
    data["federation"].pop("parties")
    with pytest.raises(ConfigurationError, match=r"repeated records.*charged as one") as refused:
        coordinator_task(data, tmp_path, ["a", "b", "c"])
    assert refused.value.code == "not-private"
    with pytest.raises(ConfigurationError) as refused:
        plan_run(load(make_task(tmp_path), ["method.name=discriminator", "method.accounting=paper"]))
    assert refused.value.code == "not-private"


def test_songs_ablation_options_remove_their_sums_from_the_plan(tmp_path):
    def sigmas(*changes):
        return {one.name: one.sigma for one in plan_run(song_task(tmp_path, *changes)).plan.sums}

    whole = sigmas()
    assert sigmas("method.noise=false") == whole | {"teachers": 0.0}
    assert sigmas("method.tutor=exact") == whole | {"labels": 0.0}
    assert sigmas("method.tutor=none") == {"teachers": whole["teachers"]}
    alone = plan_run(song_task(tmp_path, "federation.parties=1")).plan
    assert (alone.quorum.parties, alone["teachers"].parameters["teachers"]) == (1, 1)


def test_one_noisy_scalar_decides_like_songs_two_noisy_counts():
    """Eq. 1 anew: P(argmax says private) of two noisy sums, against the scalar's; and probabilities are summed."""
    rng, sigma, probabilities = np.random.default_rng(0), 1.731, np.array([0.9, 0.2, 0.6, 0.55])
    runs = 200_000
    private = probabilities.sum() + rng.normal(0.0, sigma, runs)
    public = (1 - probabilities).sum() + rng.normal(0.0, sigma, runs)
    noise = discriminator.paper_noise(Privacy(4.0, 1e-5), 0.4)
    expected = PHI((probabilities.sum() - 2.0) / noise.answer)
    assert (private > public).mean() == pytest.approx(expected, abs=0.005)

    x = embed([f"record {n}" for n in range(6)])
    c, q = embed([f"other {n}" for n in range(9)]), embed([f"asked {n}" for n in range(5)])
    classes = [np.zeros(count, dtype=np.int64) for count in (6, 9, 5)]
    shards = np.array([0, 0, 1, 1, 1, 0])
    given = (x, classes[0], shards, c, classes[1], q, classes[2])
    votes = teachers.votes(*given, teachers=3, class_count=1, half=False)
    answers = teachers.votes(*given, teachers=3, class_count=1, half=False, probabilities=True)
    assert ((answers > 0.5) == votes.astype(bool))[:2].all()
    assert not answers[2].any()  # a shard without records
    assert 0 < answers[:2].min() < answers.max() < 1


def test_song_s_student_learns_hard_labels_of_equal_weight(monkeypatch):
    seen = {}

    def fine_tune(texts, labels, settings, *, weights, seed):
        seen.update(labels=labels, weights=weights, rate=settings.learning_rate)

    monkeypatch.setattr(discriminator, "fine_tune", fine_tune)
    counts = np.array([9.1, 7.4, 7.6, 0.2])  # of 15 teachers, noisy
    given = (["a", "b", "c", "d"], counts - 7.5, None)
    discriminator.fine_tuned(*given, seed=0, hard=True, rate=2e-5)
    assert seen["labels"] == [("private" if count > 15 - count else "synthetic") for count in counts]
    assert (seen["weights"], seen["rate"]) == (None, 2e-5)
    discriminator.fine_tuned(*given, seed=0)
    assert seen["weights"].tolist() == pytest.approx(np.abs(counts - 7.5).tolist())


def test_song_s_prompt_has_one_author_a_least_length_and_no_hint(ran):
    changes = ["method.samples=40", "method.discriminator=random", "method.accounting=exact", "method.student=linear"]
    asked, samples, _, _ = ran("discriminator", [*changes, "method.kept=12", "federation.parties=1"])
    assert len(samples) == 12
    for _, request in asked:
        assert request.kind == "author"
        assert "You are a professional medical transcriber." in request.prompt
        assert all(said in request.prompt for said in ("Use about 400 words.", "Write at least 200 words."))
    assert len({request.prompt for _, request in asked}) == len(LABELS)  # one prompt for each label


def test_discriminator_keeps_the_highest_scores_of_each_class():
    """3.6: per class by the tutor's shares, the highest scores: an independent sort."""
    rng = np.random.default_rng(3)
    scores, labels = rng.normal(size=400), np.repeat([0, 1], 200)
    found = discriminator.kept(scores, labels, np.array([0.75, 0.25]), 20 / 400)
    expected = sorted(
        position
        for label, count in ((0, 15), (1, 5))
        for position in sorted(np.flatnonzero(labels == label), key=lambda i: -scores[i])[:count]
    )
    assert found == expected


# Baselines


def test_dp_kps_s_aug_pe_writes_a_tenth_of_its_prompts_without_the_class(ran):
    """DP-KPS B.1.3 and section 3: B / 10 texts of ten sequential prompts each, no class in any of them."""
    options = augpe.Options(preset="dpkps", samples=1000)
    assert set(options.populations) == {100}
    assert augpe.generator_calls(options, Setting(LABELS, ("one",))) == 1000
    changes = ["method.preset=dpkps", "method.samples=200", "method.vocabulary=words.txt"]
    asked, samples, _, _ = ran("augpe", changes)
    assert {sample.label for sample in samples} == set(LABELS)
    for _, request in asked:
        assert request.label == ""
        assert all(label not in request.prompt for label in LABELS)


@pytest.mark.slow
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
    theirs = dpkps.Options(preset="paper", vocabulary="words.txt")  # one V~ for both methods
    assert options.histogram(setting) == theirs.histogram(setting)
    for key in ("vocabulary_words", "common_words", "keyphrases", "false_terms"):
        assert getattr(options, key) == getattr(theirs, key)


@pytest.mark.parametrize(("module", "votes", "sigma"), [(augpe, 4, 2.162), (pretext, 5, 2.418)])
def test_wasps_pe_baselines_spend_all_of_epsilon(module, votes, sigma):
    """WASP's baselines, one vote a record: exact noise over all votes, eight times as large for users of eight."""
    for privacy, size in (
        (Privacy(4.0, 1e-5), 1),
        (Privacy(4.0, 1e-5, "party", max_per_unit=8, contribution="sum"), 8),
    ):
        setting = Setting(LABELS, ("one",), privacy=privacy)
        planned = plan_sums(module.plan(module.Options(preset="paper"), setting), privacy, ALONE)
        assert [one.sigma for one in planned.sums] == pytest.approx([size * sigma] * votes, rel=1e-3)
        assert spent(math.sqrt(votes) * size / planned.sums[0].sigma, 1e-5) == pytest.approx(4.0, rel=1e-3)


def test_aug_pe_with_eight_votes_is_wasp_s_refinement():
    """WASP, E.2: Q from 1 to 8; one histogram of 1, 1/2, ... changes by sqrt(sum 4^-q) = 1.155 with a record."""
    setting = Setting(LABELS, ("one",), privacy=Privacy(4.0, 1e-5))
    one, eight = (
        plan_sums(augpe.plan(augpe.Options(preset="paper", votes=q), setting), setting.privacy, ALONE) for q in (1, 8)
    )
    assert [vote.parameters["q"] for vote in eight.sums] == [8] * 4
    assert not any(vote.parameters["furthest"] for vote in eight.sums)
    assert eight["votes/1"].sigma / one["votes/1"].sigma == pytest.approx(math.sqrt(sum(4.0**-q for q in range(8))))
    assert eight.epsilon() == pytest.approx(4.0, rel=1e-3)
    assert eight["votes/1"].sigma == pytest.approx(2.50, abs=0.005)
