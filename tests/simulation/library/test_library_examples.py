"""The examples in the library's docstrings are true, of a small task that a function writes and embeds."""

from __future__ import annotations

import doctest
import importlib
import zlib

import numpy as np
import pytest

import undersong as us
from tests.doubles.party_home import HashedEmbedder
from tests.test_docstring_examples import OF_THE_LIBRARY
from undersong_common.models.embedding import Embedder

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore:(Mean of empty|invalid value):RuntimeWarning")]

WORDS = {"cat": "purrs sleeps hides leaps stares", "dog": "barks runs digs fetches waits"}


def remark(label: str, rng: np.random.Generator) -> str:
    place = rng.choice(["door", "wall", "lamp", "garden", "old chair", "cold stove"])
    return f"it {rng.choice(WORDS[label].split())} by the {place} at {rng.integers(1, 100)}"


def write(prompt: str) -> str:
    """Another text for every prompt, of the label that the prompt names."""
    return remark("dog" if "dog" in prompt else "cat", np.random.default_rng(zlib.crc32(prompt.encode())))


def draw_vector(text: str) -> list[float]:
    return list(np.random.default_rng(zlib.crc32(text.encode())).normal(size=8))


@pytest.fixture(scope="module")
def named():
    """The names that the examples use."""
    import pandas

    rng = np.random.default_rng(0)
    rows = [{"text": remark(label, rng), "label": label} for _ in range(20) for label in WORDS]
    records, test = pandas.DataFrame(rows[:24]), pandas.DataFrame(rows[24:])
    given = {"description": "a remark", "generators": [write], "embedder": draw_vector, "epsilon": 4.0, "parties": 2}
    options = {"samples": 8, "rounds": 2, "votes": 2, "examples": 2, "shortlist": 2}
    task = us.Task.from_frame(records, method="wasp", options=options, **given)
    return {"us": us, "records": records, "test": test, "write": write, "task": task, "run": us.simulate(task)}


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(OF_THE_LIBRARY))
def test_docstring_examples_of_public_names_run_as_shown(module, named, monkeypatch):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    result = doctest.testmod(importlib.import_module(module), extraglobs=named)
    assert result.attempted > 1
    assert result.failed == 0


def test_every_public_name_has_an_example():
    named = {name: getattr(us, name).__doc__ for name in set(us.__all__) - {"__version__"}}
    assert [name for name, words in named.items() if ">>> " not in words] == []
    assert "__version__" in us.__doc__
