"""The README's Python blocks run as they stand, and print what stands below them."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import undersong as us
from examples import voting
from tests.doubles.party_home import HashedEmbedder
from undersong_common.embedding import Embedder
from undersong_common.errors import ConfigurationError
from undersong_server import methods

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIBRARY, METHOD = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_library_block_prints_the_lines_below_it(monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(LIBRARY, {})
    below = README.partition(LIBRARY)[2].partition("\n\n")[2].partition("\n\n")[0]
    assert printed.getvalue().splitlines() == [line.removeprefix("    ") for line in below.splitlines()]


def test_method_block_is_the_example():
    assert methods.load("voting").run is voting.run
    assert METHOD in (ROOT / "examples" / "voting.py").read_text(encoding="utf-8")


@pytest.mark.heavy
def test_offered_method_writes_a_corpus_in_a_simulation(monkeypatch, tmp_path):
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


def test_no_program_offers_a_method_under_a_taken_name():
    with pytest.raises(ConfigurationError) as error:
        methods.offer("wasp", methods.load("voting"))
    assert error.value.code == "name-taken"
