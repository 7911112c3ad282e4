"""The task's attributes in the default method: opened shares, prompts, the corpus's columns, and what is refused."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles import bench
from tests.doubles.coded import raises
from tests.doubles.tasks import make_replay_task
from tests.doubles.word_embedding import embed
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_server.methods import undersong
from undersong_server.methods.interface import Attribute, Setting
from undersong_server.pool import Sample
from undersong_server.release.files import corpus_files
from undersong_server.runs import execution
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

PLACES = ("harbour town", "mountain village")


@pytest.fixture
def task_file(tmp_path, monkeypatch):
    """Notes of the harbour (three of four) or of the mountain; a tenth says nothing of sex."""
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    rng = np.random.default_rng(0)
    sexes, places = rng.choice(["female", "Male", ""], 400, p=[0.6, 0.3, 0.1]), rng.choice(2, 400, p=[0.75, 0.25])
    private = [
        {"text": f"{PLACES[p]} {n}", "label": "ab"[n % 2], "sex": str(s)}
        for n, (s, p) in enumerate(zip(sexes, places, strict=True))
    ]
    pool = [{"text": f"{PLACES[n % 2]} {n}", "label": "ab"[n // 2 % 2], "sex": ""} for n in range(1000, 1600)]
    return make_replay_task(
        tmp_path,
        private,
        generators={"one": pool[:300], "two": pool[300:]},
        privacy={"epsilon": 8.0},
        federation={"parties": 1},
        method={"name": "undersong", "samples": 120},
        attributes=[
            {"name": "gender", "values": ["female", "male"], "column": "sex"},
            {"name": "place", "values": list(PLACES)},
        ],
    )


@pytest.mark.slow
def test_attributes_of_orders_and_corpus_follow_the_records_shares(task_file, monkeypatch):
    orders, write = [], bench.CountingRun.write
    monkeypatch.setattr(
        bench.CountingRun, "write", lambda self, step, t, given: orders.extend(given) or write(self, step, t, given)
    )
    task = tasks.load(task_file)
    samples, run = bench.run_method(task, plan_run(task), seed=3)
    assert run.records["shares of gender"][-1][1] == pytest.approx([0.6, 0.3, 0.1], abs=0.08)
    assert run.records["shares of place"][-1][1] == pytest.approx([0.75, 0.25], abs=0.08)
    written = Counter(dict(each.attributes)["gender"] for each in samples)
    found = [written[value] / len(samples) for value in ("female", "male", "")]
    assert found == pytest.approx([0.6, 0.3, 0.1], abs=0.15)
    execution._compare_attributes(run, samples)
    said = [value for _, value in run.records["remarks"] if "gender" in value]
    assert said == [said[0]]
    assert f"({found[2]:.0%})" in said[0].partition("missing")[2]
    assert {each.terms for each in orders} == {
        (place, *gender) for place in PLACES for gender in ((), ("gender female",), ("gender male",))
    }
    assert {each.kind for each in orders} == {"metadata"}
    rows = [json.loads(line) for line in corpus_files(samples)["synthetic.jsonl"].decode().splitlines()]
    assert [(row["place"], row["gender"]) for row in rows] == [tuple(v for _, v in s.attributes) for s in samples]
    assert {row["gender"] for row in rows} == {"female", "male", ""}


def test_texts_without_attributes_get_empty_attribute_columns():
    sex = Attribute("sex", ("f", "m"), column=True)
    said = []
    run = SimpleNamespace(
        setting=Setting(("a",), ("one",), attributes=(sex,)),
        records={"shares of sex": [(0, [0.5, 0.25, 0.25])]},
        record=lambda *each: said.append(each[-1]),
    )
    samples = [Sample(f"text {n}", "a", "one", 0, "", (("sex", "m"),) if n else ()) for n in range(2)]
    execution._compare_attributes(run, samples)
    assert said[0].endswith("f 50% (0%), m 25% (50%), missing 25% (0%)")
    rows = [json.loads(line) for line in corpus_files(samples)["synthetic.jsonl"].decode().splitlines()]
    assert [row["sex"] for row in rows] == ["", "m"]


def test_missing_attribute_value_is_drawn_but_not_put_into_the_prompt():
    sex, tone = Attribute("sex", ("f", "m"), column=True), Attribute("tone", ("calm",), column=False)
    setting = Setting(("a",), ("one",), attributes=(tone, sex))
    run = SimpleNamespace(setting=setting, record=lambda *_: None)
    opened = undersong.attribute_shares(run, np.array([9.0, 0.0, 0.0, 5.0]))
    assert [share.tolist() for share in opened] == [[1.0], [0.0, 0.0, 1.0]]
    named = undersong.draw_attributes(setting, opened, np.random.default_rng(0))
    assert named == (("tone", "calm"), ("sex", ""))
    assert undersong.attribute_terms(setting, named) == ("calm",)
    assert undersong.attribute_terms(setting, (("tone", "calm"), ("sex", "m"))) == ("calm", "sex m")


def test_a_method_that_does_not_read_attributes_refuses_them(task_file):
    with raises(ConfigurationError, "attributes-unread"):
        plan_run(tasks.load(task_file, ["method={name='mixture', samples=120}"]))


@pytest.mark.parametrize(
    "given", ["{name='a', values=['x', 'X']}", "{name='text', values=['x']}", "{name='a', values=[]}"]
)
def test_task_with_invalid_attributes_is_refused_when_loaded(task_file, given):
    with pytest.raises(ConfigurationError):
        tasks.load(task_file, [f"attributes=[{given}]"])
