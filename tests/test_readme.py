"""The README's Python blocks run as they stand, and print what stands below them."""

import io
import linecache
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import undersong as us
from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import make_task
from undersong.methods import Method, MethodOptions, Order, RunContext, Setting, SumRequest, TopQVotes
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_server import methods
from undersong_server.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIBRARY, METHOD = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def voting(monkeypatch):
    """Names of the example, whose method is known until the test ends."""
    monkeypatch.setattr(methods, "OFFERED", {})
    return runpy.run_path(str(ROOT / "examples" / "voting.py"))


@pytest.mark.slow
def test_library_block_prints_the_lines_below_it(monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(LIBRARY, {})
    below = README.partition(LIBRARY)[2].partition("\n\n")[2].partition("\n\n")[0]
    assert printed.getvalue().splitlines() == [line.removeprefix("    ") for line in below.splitlines()]


def test_method_of_the_readme_is_the_example_file(voting):
    assert methods.load("voting").run is voting["run"]
    assert METHOD in (ROOT / "examples" / "voting.py").read_text(encoding="utf-8")


@pytest.mark.heavy
def test_offered_method_writes_a_corpus_in_a_simulation(voting, monkeypatch, tmp_path):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path))
    pandas = pytest.importorskip("pandas")
    notes = [(f"a {thing} near the {place}", thing) for thing in ("pan", "rose") for place in ("door", "wall", "lamp")]
    records = pandas.DataFrame(notes * 2, columns=["text", "label"])
    task = us.Task.from_frame(
        records,
        description="a remark",
        parties=3,
        epsilon=4.0,
        method="voting",
        options={"samples": 12, "rounds": 3},
        generators=[{"name": "small", "kind": "ngram", "corpus": records}],
    )
    assert us.plan(task).sums["releases"].sum() == 2
    run = us.simulate(task)
    assert set(run.corpus["label"]) == {"pan", "rose"}


def test_offering_a_method_under_a_taken_name_is_refused(voting):
    with pytest.raises(ConfigurationError) as error:
        methods.offer("wasp", methods.load("voting"))
    assert error.value.code == "name-taken"


def run_of(method, tmp_path, monkeypatch):
    """Runs ``method`` as "mine" on a small task of two labels."""
    monkeypatch.setattr(methods, "OFFERED", {"mine": method})
    task = us.Task.load(make_task(tmp_path), "method.name=mine")
    return us.simulate(task, tmp_path / "out", progress=None)


def write_label(label):
    return lambda _options, run: run.generate("first", 0, [Order(run.setting.generators[0], "zero_shot", label)])


def vote_on_nothing(_options, run):
    return run.votes("votes")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("run", "code"),
    [(write_label("no label of the task"), "unknown-label"), (vote_on_nothing, "candidates")],
)
def test_impossible_order_or_vote_is_refused_before_a_party_is_asked(run, code, tmp_path, monkeypatch):
    vote = SumRequest("votes", TopQVotes(q=1, candidates=4, labels=2, furthest=False))
    method = Method(Options=MethodOptions, plan=lambda _o, _s: [vote], generator_calls=lambda _o, _s: 4, run=run)
    with pytest.raises(ConfigurationError) as error:
        run_of(method, tmp_path, monkeypatch)
    assert error.value.code == code


@pytest.mark.parametrize(
    "declared",
    [
        {"Options": dict},
        {"Options": MethodOptions()},
        {"plan": lambda _options: []},
        {"run": "run"},
        {"generator_calls": lambda: 1},
    ],
)
def test_malformed_method_is_refused_when_it_is_declared(declared):
    fitting = {"Options": MethodOptions, "plan": lambda _o, _s: [], "run": lambda _o, _r: []}
    with raises(ConfigurationError, "method-form"):
        Method(**{**fitting, **declared})


@pytest.mark.parametrize("offered", [("", None), (3, None), ("mine", lambda _options, _run: [])])
def test_offering_something_that_is_no_method_is_refused(offered):
    with raises(ConfigurationError, "method-form"):
        methods.offer(*offered)


@pytest.mark.parametrize("planned", [None, "votes", [TopQVotes(q=1, candidates=4, labels=2, furthest=False)]])
def test_method_whose_plan_returns_no_list_of_requests_is_refused(planned, tmp_path, monkeypatch):
    method = Method(Options=MethodOptions, plan=lambda _o, _s: planned, run=lambda _o, _r: [])
    with raises(ConfigurationError, "method-form"):
        run_of(method, tmp_path, monkeypatch)


@pytest.mark.parametrize("weights", [[1.0], [0.2, 0.3, 0.5], "ab", [float("nan"), 1.0], None])
def test_method_weights_that_are_not_one_per_generator_are_refused(weights):
    context = RunContext(Setting(("a",), ("one", "two")), None, None, None, embed=None, seed=0)
    with raises(ConfigurationError, "recorded-weights") as refused:
        context.record("weights", 1, weights)
    assert "one, two" in refused.value.remedy
    context.record("weights", 1, np.array([0.25, 0.75]))


def test_error_for_unknown_method_says_where_an_offered_one_is_known():
    with pytest.raises(ConfigurationError) as refused:
        methods.load("my-method")
    assert "run the program, or make the method a package" in refused.value.remedy


class SpokenProgress(Progress):
    """Keeps what a run says."""

    def __init__(self):
        self.spoken = []

    def say(self, message):
        self.spoken.append(message)


def written_method(path, number, step):
    """Loads a program with a method that orders ``number`` texts in the step ``step``."""
    path.write_text(
        "from undersong.methods import Method, MethodOptions, Order, offer\n"
        "def plan(options, setting):\n    return []\n"
        "def run(options, run):\n"
        "    writer = run.setting.generators[0]\n"
        f"    return run.generate('{step}', 0, [Order(writer, 'zero_shot', run.setting.labels[0])] * {number})\n"
        "METHOD = Method(Options=MethodOptions, plan=plan, run=run, generator_calls=lambda o, s: 4)\n",
        encoding="utf-8",
    )
    linecache.checkcache()
    return runpy.run_path(str(path))["METHOD"]


@pytest.mark.heavy
def test_changed_method_continuing_an_old_folder_gives_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path))
    task_file = make_task(tmp_path)

    def said(number, word="first"):
        monkeypatch.setattr(methods, "OFFERED", {"mine": written_method(tmp_path / "mine.py", number, word)})
        task, progress = us.Task.load(task_file, "method.name=mine"), SpokenProgress()
        us.simulate(task, tmp_path / "out", progress=progress)
        return [words for words in progress.spoken if "is not that with which this run began" in words]

    assert (said(1), said(1)) == ([], [])
    assert len(said(1, "second")) == 1
    with raises(ConfigurationError, "step-changed"):
        said(2)
