"""What a method's file defines: the registry finds methods and nothing else, and each states what its plan shows."""

import importlib
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models.model_files import PACKAGED
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import LabelHistogram
from undersong_server import methods
from undersong_server.methods.interface import Method, MethodOptions, Setting
from undersong_server.runs import planning
from undersong_server.runs import task as tasks

SETTING = Setting(("a", "b"), ("one", "two"), steerable=(PACKAGED, PACKAGED))


def test_methods_are_exactly_the_files_beside_the_interface():
    folder = Path(methods.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "interface"}
    names = {file.replace("_", "-") for file in files - {"mixture_labels"}} | {"mixture+labels"}
    assert set(methods.own_names()) == names
    assert {"undersong", "wasp", "dpga"} <= set(methods.names())
    for name in ("interface", "parts", "Wasp", "mixture_labels", "mixture-labels", "cleaned_mixture", ""):
        with pytest.raises(ConfigurationError, match="is unknown"):
            methods.load(name)


@pytest.mark.parametrize("name", methods.own_names())
def test_no_option_of_a_method_takes_a_number_that_no_plan_could_count(name):
    options = methods.load(name).Options
    refusals = set()
    for key, number in product(options.model_fields, (10**20, [10**20])):
        try:
            accepted = getattr(options(**{key: number}), key)
        except ValidationError as refused:
            refusals |= {(key, error["type"]) for error in refused.errors()}
        else:
            assert isinstance(accepted, float)  # a weight or an epsilon
    assert ("samples", "less_than_equal") in refusals


@pytest.mark.parametrize("name", ["wasp", "pretext", "fusegen"])
def test_number_of_examples_in_a_prompt_is_bounded(name):
    options = methods.load(name).Options
    assert options(examples=100).examples == 100
    with pytest.raises(ValidationError, match="less than or equal to 100"):
        options(examples=101)


@pytest.mark.heavy
@pytest.mark.parametrize("name", methods.own_names())
def test_every_method_can_be_planned_with_its_default_options(name):
    method = methods.load(name)
    assert method is importlib.import_module(f"undersong_server.methods.{re.sub('[+-]', '_', name)}").METHOD
    assert issubclass(method.Options, MethodOptions)
    with pytest.raises(ValueError, match="frozen"):
        method.Options().samples = 1
    assert bool(method.plan(method.Options(), SETTING)) == method.makes_private_sums
    assert method.generator_calls(method.Options(), SETTING) > 0


def test_hooks_that_a_method_leaves_out_have_no_effect():
    method = Method(
        Options=MethodOptions, plan=lambda _o, _s: [], generator_calls=lambda _o, _s: 1, run=lambda _o, _r: []
    )
    assert list(method.notes(MethodOptions(), SETTING)) == []
    assert dict(method.paper_figures(MethodOptions(), None)) == {}
    assert dict(method.figures({}, None, None, None)) == {}


def test_method_that_denies_its_private_sums_is_refused(tmp_path, monkeypatch):
    lying = Method(
        Options=MethodOptions,
        plan=lambda _options, setting: [SumRequest("labels", LabelHistogram(len(setting.labels)))],
        generator_calls=lambda _options, _setting: 1,
        run=lambda _options, _run: [],
        makes_private_sums=False,
    )
    task = tasks.load(make_task(tmp_path), ["method.name=mixture"])
    monkeypatch.setattr(methods, "load", lambda _name: lying)
    with pytest.raises(InternalError, match="plans private sums and states that it makes none"):
        planning.plan_run(task.model_copy(update={"method": tasks.MethodSection(name="lying")}))


def test_code_hash_covers_a_method_defined_without_a_file(monkeypatch):
    hashes = []
    for planned, kept in (("[]", "[]"), ("[]", "texts"), ("[setting]", "[]"), ("[]", "[]")):
        cell: dict[str, object] = {}
        exec(f"def plan(options, setting): return {planned}\ndef run(options, run, texts=()): return {kept}", cell)
        monkeypatch.setitem(methods.OFFERED, "of_a_notebook", SimpleNamespace(plan=cell["plan"], run=cell["run"]))
        hashes.append(methods.hash_code("of_a_notebook"))
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 3
    assert len(hashes[0]) == 64


def test_code_hash_does_not_depend_on_the_order_of_a_set(monkeypatch):
    hashes = []
    for numbers in ("{0, 8}", "{8, 0}", "{0, 16}"):  # 0 and 8 collide in a small set, which shows the first one first
        cell: dict[str, object] = {}
        exec(f"def plan(options, setting): return []\ndef run(options, run): return run in {numbers}", cell)
        monkeypatch.setitem(methods.OFFERED, "of_a_notebook", SimpleNamespace(plan=cell["plan"], run=cell["run"]))
        hashes.append(methods.hash_code("of_a_notebook"))
    assert hashes[0] == hashes[1] != hashes[2]
