"""A writer in place of the n-gram model: texts of each label's own words, and all that it is asked."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.doubles.tasks import LABELS
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.ngram import NgramGenerator

GOOD_WORDS = {LABELS[0]: "pan oven soup", LABELS[1]: "rose spade soil"}
VOCABULARY = ("pan", "oven", "soup", "rose", "spade", "soil", "hedge", "plate")


def topic_writer(monkeypatch: pytest.MonkeyPatch, mistaken: Sequence[str] = ()) -> list[tuple[str, GenerationRequest]]:
    """Lets it write texts of 4 to 10 words, or lists of keywords; the generator's name and request of each answer.

    The generators of the names in ``mistaken`` write texts of the other label.
    """
    others = dict(zip(LABELS, reversed(LABELS), strict=True))
    asked: list[tuple[str, GenerationRequest]] = []

    def answer(self: Any, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion]]:
        for index, request in enumerate(requests):
            asked.append((self.name, request))
            if request.kind == "keywords":
                topics = GOOD_WORDS.get(request.label, "a b c").split()
                yield index, Completion("1. " + "\n2. ".join([*topics, "nobody votes", "nor for this"]))
                continue
            if request.kind == "keywords_by_label":
                lists = {name: [*GOOD_WORDS[name].split(), f"{name} nobody votes"] for name in request.terms}
                yield index, Completion(json.dumps(lists))
                continue
            label = others.get(request.label, "") if self.name in mistaken else request.label
            text = f"{GOOD_WORDS.get(label, 'pan rose soil')} {request.seed} " + "very " * (request.seed % 7)
            yield index, Completion(text.strip())

    monkeypatch.setattr(NgramGenerator, "answer", answer)
    return asked
