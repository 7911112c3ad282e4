"""Records that an audit plants among the private ones, and attacks on the corpus that say which of them were there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.embedding import Embed
from undersong_common.table import Table, concatenate
from undersong_server.evaluation import task_model
from undersong_server.evaluation.membership import entropy, of_label
from undersong_server.pool import Sample

KINDS = ("rare end", "far off", "many words", "twin")
REPEATS = 6  # of a real record's words before the rare end begins: at least so many, else half of it


@dataclass(frozen=True)
class Canary:
    """One privacy unit of records that nobody else has.

    Attributes:
        kind: how it is made (:data:`KINDS`).
        rows: its records; several where a user's records count by their sum.
    """

    kind: str
    rows: Table

    def __repr__(self) -> str:
        # A canary begins as a private record does.
        return f"Canary(kind={self.kind!r}, rows={len(self.rows)})"


def make_canaries(
    private: Table, labels: Sequence[str], rare_words: Sequence[str], count: int, rng: np.random.Generator, *, rows: int
) -> list[Canary]:
    """``count`` canaries, their kinds in turn.

    "rare end" begins as one of the private records and ends in words that hardly anybody writes (Meeus et al. 2025,
    section 5: synthetic text echoes a canary best that starts in distribution and ends with high perplexity).
    "far off" has rare words only: the extreme of every vote for the furthest candidates. "many words" has 120
    different words: as many terms, keyphrases and words of length as a record can have. "twin" is a private record
    with one word changed: the extreme of votes for the nearest.

    Args:
        private: the records they hide among, at least one.
        labels: the task's; a canary has one of them, or the label of the record it starts from. Empty: no labels.
        rare_words: public words to draw from, the commonest first; at least 300.
        rows: records per canary, all alike: what a user at the cap contributes.
    """
    made = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        row = int(rng.integers(len(private)))
        words = private.texts[row].split()
        label = private.labels[row] if private.labels is not None else ""
        if kind == "rare end":
            kept = max(min(REPEATS, len(words)), len(words) // 2)
            text = " ".join([*words[:kept], *_some(rare_words, 12, rng)])
        elif kind == "far off":
            text = " ".join(_some(rare_words, 30, rng))
            label = labels[int(rng.integers(len(labels)))] if labels else label
        elif kind == "many words":
            text = " ".join(_some(rare_words, 120, rng))
            label = labels[int(rng.integers(len(labels)))] if labels else label
        else:
            changed = list(words)
            changed[int(rng.integers(len(words)))] = _some(rare_words, 1, rng)[0]
            text = " ".join(changed)
        user = f"canary-{number}"
        made.append(
            Canary(
                kind,
                Table(
                    (text,) * rows,
                    None if private.labels is None else (label,) * rows,
                    None if private.users is None else (user,) * rows,
                ),
            )
        )
    return made


def planted(tables: dict[str, Table], canaries: Sequence[Canary], homes: Sequence[str]) -> dict[str, Table]:
    """The parties' tables with each canary at the party ``homes`` names for it, after the party's own records."""
    result = dict(tables)
    for canary, home in zip(canaries, homes, strict=True):
        result[home] = concatenate([result[home], canary.rows])
    return result


def _some(words: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [words[int(index)] for index in rng.choice(len(words), count, replace=False)]


SIMILARITY = "the corpus alone: similarity of its nearest text"
TRIPLES = "the corpus alone: word triples it shares"
ENTROPY = "a task model trained on the corpus: entropy of its prediction"
CONFIDENCE = "a task model trained on the corpus: confidence in the true label"


def attack_corpus(
    samples: Sequence[Sample], canaries: Sequence[Canary], labels: Sequence[str], embed: Embed
) -> dict[str, Float64]:
    """Scores float64 [c] by attack, the same attacks whatever was written; zeros where one has nothing to read.

    The nearest text's cosine, and the share of shared word triples (after Meeus et al. 2025, section 3); where the task
    has ``labels``, what the task model says that anybody trains on the corpus (Salem et al. 2019, Yeom et al. 2018).
    """
    names = [SIMILARITY, TRIPLES, *([ENTROPY, CONFIDENCE] if len(labels) > 1 else [])]
    found = {name: np.zeros(len(canaries)) for name in names}
    if not samples:
        return found
    texts = [sample.text for sample in samples]
    planted, written = embed([canary.rows.texts[0] for canary in canaries]), embed(texts)
    found[SIMILARITY] = np.asarray(planted @ written.T, dtype=np.float64).max(axis=1)
    known = {triple for text in texts for triple in _triples(text)}
    found[TRIPLES] = np.array([_shared(canary.rows.texts[0], known) for canary in canaries])
    given = [sample.label for sample in samples]
    if ENTROPY in found and len(set(given)) > 1:
        model = task_model.train(written, given, head="linear")
        probabilities = model.probabilities(planted)
        found[ENTROPY] = -entropy(probabilities)
        own = tuple(canary.rows.labels[0] if canary.rows.labels else "" for canary in canaries)
        found[CONFIDENCE] = of_label(probabilities, model.labels, own)
    return found


def _shared(text: str, known: set[tuple[str, str, str]]) -> float:
    own = _triples(text)
    return sum(triple in known for triple in own) / max(1, len(own))


def _triples(text: str) -> list[tuple[str, str, str]]:
    words = text.lower().split()
    return list(zip(words, words[1:], words[2:], strict=False))
