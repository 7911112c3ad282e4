"""What leaves for an endpoint: every request of a run, as its bytes came in, has what its method's paper says.

Texts that are tried out before a run, keywords and texts asked for once more are requests as all others.
"""

from __future__ import annotations

import json
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.chat_server import ChatServer, completion, serving
from tests.doubles.tasks import LABELS, make_task, take_sizes_out
from tests.simulation.run.test_endpoints import run

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("hashed")]

VALUES = ("as large as a house", "as small as a thimble")
ATTRIBUTES = f"task.attributes={{ size = {json.dumps(list(VALUES))} }}"
TERMS = ("pan", "oven", "soup", "rose", "spade", "soil")
SMALL = ("method.samples=24", "method.rounds=2")
GENETIC = ("method.name=dpga", "method.population=24", "method.elite=8", "method.rounds=2", "privacy.epsilon=inf")
TERMS_OF = ("method.vocabulary=words.txt", "method.document_terms=3")
ATTRIBUTED = {
    "wasp": SMALL,
    "wasp as in its paper": (*SMALL, "method.preset=paper"),
    "fusegen as in its paper": ("method.name=fusegen", *SMALL, "method.preset=paper"),
    "pretext as in its paper": ("method.name=pretext", *SMALL, "method.preset=paper"),
    "dpga": GENETIC,
    "dpga as in its paper": (*GENETIC, "method.preset=paper"),
}
WITHOUT_CLASS = {
    "dpkps": ("method.name=dpkps", "method.preset=paper", *TERMS_OF,
              "method.per_class=8", "method.pairs=16", "method.length=3", "method.false_terms=0.99"),
    "augpe": ("method.name=augpe", "method.preset=dpkps", *TERMS_OF, "method.corpus=12", "method.rounds=2"),
}  # fmt: skip


def is_keyword_request(prompt: str) -> bool:
    return "Think of the different topics" in prompt or "JSON object" in prompt


class KeywordWriter:
    """Writes lists where a prompt asks for kinds or topics, and otherwise a different text at every call."""

    def __init__(self) -> None:
        self._numbers, self._lock = count(), threading.Lock()

    def __call__(self, prompt: str) -> dict[str, Any]:
        if "JSON object" in prompt:
            halves = dict(zip(LABELS, (TERMS[:3], TERMS[3:]), strict=True))
            return completion(json.dumps(halves))
        if is_keyword_request(prompt):
            return completion(", ".join(TERMS))
        with self._lock:
            number = next(self._numbers)
        words = " ".join(TERMS[(number // 6**place) % 6] for place in range(4))
        return completion(f"<text>The {words} were seen {number} times.</text>")


def written_labels(folder: Path) -> list[str]:
    """Returns the labels of a run's corpus."""
    lines = (folder / "out" / "synthetic.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["label"] for line in lines]


def collect_requests(folder: Path, *assignments: str) -> list[str]:
    """Returns every request of a run with one endpoint, system and user messages joined."""
    take_sizes_out(make_task(folder, records=20, samples=24))
    (folder / "words.txt").write_text("\n".join(TERMS), encoding="utf-8")
    server = ChatServer(KeywordWriter())
    with serving(server):
        run(folder, folder / "out", server.url, *assignments)
    return ["\n".join(message["content"] for message in body["messages"]) for body in server.bodies]


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTRIBUTED)
def test_every_prompt_to_an_endpoint_names_one_attribute_value(tmp_path: Path, name: str) -> None:
    prompts = collect_requests(tmp_path, *ATTRIBUTED[name], ATTRIBUTES)
    texts = [request for request in prompts if not is_keyword_request(request)]
    assert len(texts) >= 24
    assert all(sum(value in request for value in VALUES) == 1 for request in texts)
    assert {value for value in VALUES for request in texts if value in request} == set(VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_CLASS)
def test_no_prompt_to_an_endpoint_names_a_hidden_class(tmp_path: Path, name: str) -> None:
    prompts = collect_requests(tmp_path, *WITHOUT_CLASS[name])
    assert len(prompts) >= 12
    assert set(written_labels(tmp_path)) == set(LABELS)
    assert not [request for request in prompts if any(label in request for label in LABELS)]
    with_class = collect_requests(tmp_path / "told", *WITHOUT_CLASS[name], "method.class_in_prompt=true")
    assert all(any(label in request for label in LABELS) for request in with_class)
