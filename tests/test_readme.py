"""The README's Python blocks run as they stand, and print what stands below them."""

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import undersong as us
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import make_task
from undersong.methods import Method, MethodOptions, Order, SumRequest, TopQVotes
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_server import methods

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


def test_method_block_is_the_example(voting):
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


def test_no_program_offers_a_method_under_a_taken_name(voting):
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


@pytest.mark.parametrize(
    ("run", "code"),
    [(write_label("no label of the task"), "unknown-label"), (vote_on_nothing, "candidates")],
)
def test_order_or_vote_that_cannot_be_is_refused_before_a_party_is_asked(run, code, tmp_path, monkeypatch):
    vote = SumRequest("votes", TopQVotes(q=1, candidates=4, labels=2, furthest=False))
    method = Method(Options=MethodOptions, plan=lambda _o, _s: [vote], generator_calls=lambda _o, _s: 4, run=run)
    with pytest.raises(ConfigurationError) as error:
        run_of(method, tmp_path, monkeypatch)
    assert error.value.code == code
