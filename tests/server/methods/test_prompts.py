"""What the prompts of every method show: each example once, as it is, and nothing that they only speak of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.bench import run_method
from tests.doubles.steerable import steer_by_packaged
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.topic_writer import VOCABULARY
from undersong_server import methods
from undersong_server.generators.cleaning import duplicate_key
from undersong_server.generators.interface import Completion, GenerationRequest, PromptFormat
from undersong_server.generators.kinds.ngram import NgramGenerator
from undersong_server.generators.orders import FEWEST_CONTINUED, Order, Requests
from undersong_server.prompts.rendering import Prompts, TaskWords
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

PROMPTS = Prompts(TaskWords(description="a note", labels=LABELS))
OPTIONS = {
    "vector": ["method.samples=40", "method.embedding_size=48"],
    "tuned": [
        "method.samples=20",
        "method.rounds=2",
        "method.prompts=10",
        "method.texts=3",
        "method.rejected=2",
        "method.score=votes",
    ],
    "dpga": [
        "method.population=12",
        "method.elite=4",
        "method.rounds=2",
        "method.keywords=false",
        "method.embedding_size=48",
    ],
    "discriminator": ["method.samples=40", "method.queries=8", "method.contrast=8", "method.embedding_size=48"],
    "dpkps": [
        "privacy.epsilon=12.0",
        "method.false_terms=0.9",
        "method.samples=24",
        "method.vocabulary=words.txt",
        "method.pairs=16",
        "method.length=3",
        "method.examples=[]",
    ],
}


def asked_by(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What a run of a method asks a generator that always answers with a text of two lines."""
    asked: list[GenerationRequest] = []

    def answer(self: Any, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion]]:
        asked.extend(requests)
        for index, request in enumerate(requests):
            topic = "pan oven soup" if request.label == LABELS[0] else "rose spade soil"
            yield index, Completion(f"{topic} {request.seed % 97}\n  and {self.name} {request.seed}")

    monkeypatch.setattr(NgramGenerator, "answer", answer)
    steer_by_packaged(monkeypatch)
    (folder / "words.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    options = OPTIONS.get(name, ["method.samples=40", "method.rounds=2"])
    if "mixture" in name:
        options = ["method.samples=40"]
    path = make_task(folder, parties=1, records=200)
    task = load(path, [f"method.name={name}", *options])
    run_method(task, plan_run(task), seed=3)
    return asked


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_prompts_of_every_method_show_each_example_exactly_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_by(name, tmp_path, monkeypatch)
    assert len(asked) >= 20
    several = [prompt for prompt, count in Counter(request.prompt for request in asked).items() if count > 1]
    assert len(several) == (2 * 10 if name == "tuned" else 0)  # its rounds' prompts get several texts each
    for request in asked:
        good, bad = set(map(duplicate_key, request.good)), set(map(duplicate_key, request.bad))
        assert not good & bad
        assert len(good) == len(request.good)
        shown = (*request.good, *request.bad, *(request.parents if request.kind != "fill_in" else ()))
        assert all(f"\n{text}\n</" in request.prompt for text in shown)
        said = request.prompt.casefold()
        assert ("bad example" in said) == bool(request.bad)
        assert ("good example" in said) == (bool(request.good) and bool(request.bad))


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=30)


@given(
    kind=st.sampled_from(["contrast", "examples", "cross", "paraphrase", "keyphrases", "zero_shot"]),
    good=st.lists(TEXTS, max_size=4),
    bad=st.lists(TEXTS, max_size=4),
    style=st.sampled_from(["chat", "completion"]),
    room=st.sampled_from([None, 60, 400]),
)
def test_no_prompt_shows_a_text_as_good_and_bad_or_a_changed_example(
    kind: str, good: list[str], bad: list[str], style: Any, room: int | None
) -> None:
    order = Order("g", kind, LABELS[0], tuple(good), tuple(bad), parents=(*good, "parent"), terms=("one", "two"))
    if kind == "examples" and not good:
        return
    made, shortened = Requests(PROMPTS, {"g": PromptFormat(style=style, prompt_tokens=room)}, seed=1).make(
        "step", [order], [0], [1]
    )
    request = made[0]
    assert not {duplicate_key(text) for text in request.good} & {duplicate_key(text) for text in request.bad}
    if not shortened:
        wanted = set(map(duplicate_key, good))
        few = style == "completion" and len(wanted) < FEWEST_CONTINUED
        assert set(map(duplicate_key, request.good)) == (set() if few else wanted)
        assert request.parents == order.parents
    shown = {
        "contrast": request.good if style == "completion" else (*request.good, *request.bad),
        "examples": request.good,
        "keyphrases": request.good,
        "cross": request.parents,
        "paraphrase": request.parents,
    }.get(kind, ())
    assert all(text in request.prompt for text in shown)


def test_prompts_fit_the_context_by_showing_fewer_and_shorter_examples() -> None:
    long = " ".join(f"Sentence number {n} of a long note." for n in range(40))
    order = Order(
        "g", "contrast", LABELS[0], good=tuple(f"{n} {long}" for n in range(4)), bad=("b1 " + long, "b2 " + long)
    )
    lengths = []
    for room in (None, 2500, 1000, 500, 250, 20):
        requests = Requests(PROMPTS, {"g": PromptFormat(prompt_tokens=room)}, seed=1)
        made, shortened = requests.make("step", [order], [0], [1])
        request = made[0]
        lengths.append(len(request.prompt))
        assert bool(shortened) == (room is not None)
        if room is not None and room >= 500:
            assert len(f"{request.system}\n\n{request.prompt}".encode()) <= 3 * room
            assert request.good
            assert all(text.endswith(".") for text in (*request.good, *request.bad))
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) >= 5


def test_forty_equal_orders_give_forty_different_prompts() -> None:
    for kind in ("zero_shot", "random", "metadata", "paraphrase", "fill_in", "contrast"):
        order = Order("g", kind, LABELS[0], good=("A",), parents=("a parent text",), terms=("x",))
        made, _ = Requests(PROMPTS, {}, seed=1).make("step", [order] * 40, range(40), [1] * 40)
        assert len({request.prompt for request in made.values()}) == 40
