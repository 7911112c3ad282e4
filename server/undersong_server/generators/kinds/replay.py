"""Texts that a real model wrote earlier, drawn from a file as if the model wrote them now.

A draw is a softmax over score/temperature of the texts of the request's label that were not used yet. The score adds

* the mean cosine to the good examples minus the mean cosine to the bad ones (WASP's "contrast"; nothing given, as in
  "zero_shot" and "random", is a uniform draw),
* the mean cosine to the parents ("paraphrase", "fill_in", "cross": the drawn text is near them),
* the cosine to the terms, joined by commas, plus 0.5 times the share of the terms that the text contains
  ("keyphrases", "metadata"),
* minus 0.3 times |ln(its length / the wanted length)| if a length in words is wanted ("metadata").

A label of "" draws from all labels. No text is given twice while another of the label is left; then all are used a
second time, and so on, and each such answer is noted "repeat". Texts are told apart by ``cleaning.duplicate_key``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float32, Float64
from undersong_common.errors import ConfigurationError, GenerationError, InternalError
from undersong_common.files import MISSING, FileState, file_state
from undersong_common.text.table import read_table
from undersong_protocol.agreement.words import WRITTEN_BEFORE
from undersong_server.generators.cleaning import duplicate_key
from undersong_server.generators.interface import (
    NAMES_FILE,
    Completion,
    Estimate,
    GenerationRequest,
    GeneratorSettings,
    Surroundings,
)

_CONTAINED = 0.5  # weight of the share of the terms that a text contains
_LENGTH = 0.3  # weight of |ln(a text's length / the wanted length)|
_KEPT_FILES = 16  # read files, for the next run of the same process
_TOGETHER = 128  # requests whose scores are one matrix product


class ReplaySettings(GeneratorSettings):
    """Settings of a file of texts that a real model wrote earlier.

    Attributes:
        path: JSONL file with ``text`` and ``label``: public texts only, never records.
        temperature: of the softmax over (mean cosine to the good - mean cosine to the bad examples). The default 0.05
            makes a text that is 0.05 closer e times as likely; cosine differences within a label spread by about that.
    """

    kind: Literal["replay"]
    path: str = Field(min_length=1, json_schema_extra=NAMES_FILE)
    temperature: float = Field(default=0.05, gt=0.0, le=100.0)

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def writer(self) -> str:
        return WRITTEN_BEFORE

    @property
    def recorded(self) -> bool:
        return True

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Estimates no price, and under 1 ms per text after up to a minute for embedding the file."""
        return Estimate(calls, (0, 0), (0.0, 0.0), (0.0001 * calls, 60.0 + 0.001 * calls))

    def check(self, around: Surroundings) -> None:
        self.build(around)  # reads the file, and embeds nothing yet

    def build(self, around: Surroundings) -> "ReplayGenerator":
        return ReplayGenerator(self, labels=around.labels, folder=around.folder, embed=around.embed)


KIND = ReplaySettings


@dataclass(frozen=True, eq=False)
class _TextFile:
    """Texts of a file, each once per label, label after label. Immutable.

    Attributes:
        keys: ``cleaning.duplicate_key`` of each text; ``rows``: positions of the texts with a key.
        slices: positions of the texts of a label; "" is all of them.
        ignored, duplicates: numbers of the file's rows that were left out: of another label, and repeated ones.
    """

    texts: tuple[str, ...]
    keys: tuple[str, ...]
    slices: dict[str, slice]
    rows: dict[str, list[int]]
    ignored: int
    duplicates: int

    @cached_property
    def lengths(self) -> Float64:
        """Lengths in words, float64 [texts]."""
        return np.asarray([max(1, len(text.split())) for text in self.texts], np.float64)

    @cached_property
    def postings(self) -> dict[str, set[int]]:
        """Rows of the texts that have a word, by word."""
        rows_with_word: dict[str, set[int]] = {}
        for row, key in enumerate(self.keys):
            for word in key.split():
                rows_with_word.setdefault(word, set()).add(row)
        return rows_with_word


@lru_cache(maxsize=_KEPT_FILES)
def _read_file(path: Path, _state: FileState, labels: tuple[str, ...]) -> _TextFile:
    """Reads the file, once for all runs of a comparison. Raises ConfigurationError as ``read_table`` does."""
    text_table = read_table(path, "text", "label" if labels else None)
    texts_by_label: dict[str, dict[str, str]] = {label: {} for label in labels or ("",)}
    duplicate_count = ignored_count = 0
    for text, label in zip(text_table.texts, text_table.labels or ("",) * len(text_table), strict=True):
        if label not in texts_by_label:
            ignored_count += 1
            continue
        text_key = duplicate_key(text)
        duplicate_count += text_key in texts_by_label[label]
        texts_by_label[label].setdefault(text_key, text)
    texts = tuple(text for label_texts in texts_by_label.values() for text in label_texts.values())
    text_keys = tuple(key for label_texts in texts_by_label.values() for key in label_texts)
    slice_by_label = {"": slice(0, len(texts))}
    slice_start = 0
    for label, label_texts in texts_by_label.items():
        slice_by_label[label] = slice(slice_start, slice_start + len(label_texts))
        slice_start += len(label_texts)
    rows_by_key: dict[str, list[int]] = {}
    for row, text_key in enumerate(text_keys):
        rows_by_key.setdefault(text_key, []).append(row)
    return _TextFile(texts, text_keys, slice_by_label, rows_by_key, ignored_count, duplicate_count)


class ReplayGenerator:
    """Draws from one file of texts and remembers which of them a run has used."""

    def __init__(
        self,
        settings: ReplaySettings,
        *,
        labels: Sequence[str],
        folder: Path,
        embed: Callable[[Sequence[str]], Float32],
    ) -> None:
        """Reads the file; texts are embedded when the first request needs it.

        Args:
            settings: the task's table.
            labels: the task's labels; empty takes every row, whatever its label.
            folder: where a relative path starts.
            embed: texts -> float32 [n, d] unit vectors, the same for the same text.

        Raises:
            ConfigurationError: the file is missing or broken, or holds no text of any of the labels.
        """
        self.name = settings.name
        self._temperature = settings.temperature
        self._embed = embed
        path = folder / settings.path
        try:
            file = _read_file(path.absolute(), file_state(path) if path.is_file() else MISSING, tuple(labels))
        except ConfigurationError as error:
            raise ConfigurationError(f"generator {self.name}: {error.problem}", error.remedy, code=error.code) from None
        if not file.texts:
            raise ConfigurationError(
                f"generator {self.name}: {path} has no text of any of the task's labels",
                "name a file whose labels are those of task.labels",
                code="texts-missing",
            )
        self._file = file
        self._texts = file.texts
        self._keys = file.keys
        self._slices = file.slices
        self._rows = file.rows
        self._used = np.zeros(len(self._texts), np.int64)
        self._vectors: dict[str, Float64] = {}
        self.counts = {
            "texts": len(self._texts),
            "rows_of_other_labels": file.ignored,
            "duplicate_rows": file.duplicates,
            "repeats": 0,
            "unknown_journaled": 0,
        }

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Completion | GenerationError]) -> None:
        """Marks journaled answers as used; counts those no longer in the file as ``unknown_journaled``."""
        for _, answer in zip(requests, answers, strict=True):
            if isinstance(answer, GenerationError):
                continue
            answer_key = duplicate_key(answer.text)
            if answer_key in self._rows:
                self._mark_used(answer_key)
            else:
                self.counts["unknown_journaled"] += 1

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        for request_start in range(0, len(requests), _TOGETHER):
            request_group = requests[request_start : request_start + _TOGETHER]
            for index, text_scores in enumerate(self._request_scores(request_group)):
                yield request_start + index, self._draw_text(request_group[index], text_scores)

    def _draw_text(self, request: GenerationRequest, scores: Float64 | None) -> Completion | GenerationError:
        label_slice = self._slices.get(request.label)
        if label_slice is None or label_slice.start == label_slice.stop:
            return GenerationError(
                f"generator {self.name}: the file of its path has no text of the label {request.label!r}",
                "add texts of that label to the file",
            )
        use_counts = self._used[label_slice]
        least_use_count = int(use_counts.min())
        least_used_positions = np.flatnonzero(use_counts == least_use_count)
        uniform_draw = Random(f"{self.name} {request.seed}").random()
        if scores is None:
            chosen_index = int(uniform_draw * least_used_positions.size)
        else:
            open_scores = scores[least_used_positions]
            cumulative_weights = np.cumsum(np.exp((open_scores - open_scores.max()) / self._temperature))
            chosen_index = min(
                int(np.searchsorted(cumulative_weights, uniform_draw * cumulative_weights[-1], side="right")),
                least_used_positions.size - 1,
            )
        text_row = label_slice.start + int(least_used_positions[chosen_index])
        self._mark_used(self._keys[text_row])
        return Completion(self._texts[text_row], note="repeat" if least_use_count else "")

    def _mark_used(self, key: str) -> None:
        key_rows = self._rows[key]  # more than one if the file has the text under several labels
        self.counts["repeats"] += bool(self._used[key_rows[0]])
        self._used[key_rows] += 1

    # These methods compute scores.

    def _request_scores(self, requests: Sequence[GenerationRequest]) -> Iterator[Float64 | None]:
        """Scores of the texts of each request's label, float64 [texts of the label]; None is a uniform draw."""
        example_texts = {
            text for request in requests for _, signed_texts in _signed_examples(request) for text in signed_texts
        }
        if unknown_texts := sorted(example_texts - self._vectors.keys()):
            self._vectors.update(zip(unknown_texts, self._embed_texts(unknown_texts), strict=True))
        direction_by_request: dict[int, Float64] = {}
        for request_index, request in enumerate(requests):
            mean_vectors = [
                sign * np.mean([self._vectors[text] for text in signed_texts], axis=0, dtype=np.float64)
                for sign, signed_texts in _signed_examples(request)
                if signed_texts
            ]
            if mean_vectors:
                direction_by_request[request_index] = np.sum(mean_vectors, axis=0, dtype=np.float64)
        products_by_request: dict[int, Float64] = {}
        for label in {requests[request_index].label for request_index in direction_by_request} & self._slices.keys():
            indices_of_label = [
                request_index for request_index in direction_by_request if requests[request_index].label == label
            ]
            label_products = (
                np.stack([direction_by_request[request_index] for request_index in indices_of_label])
                @ self._pool_embeddings[self._slices[label]].T
            )
            products_by_request.update(zip(indices_of_label, label_products, strict=True))
        for request_index, request in enumerate(requests):
            label_slice = self._slices.get(request.label, slice(0, 0))
            text_scores = products_by_request.get(request_index)
            if request.terms:
                term_shares = _CONTAINED * self._share_of_terms(request.terms)[label_slice]
                text_scores = term_shares if text_scores is None else text_scores + term_shares
            if request.words is not None:
                length_penalty = _LENGTH * np.abs(np.log(self._file.lengths[label_slice] / max(1, request.words)))
                text_scores = -length_penalty if text_scores is None else text_scores - length_penalty
            yield text_scores

    def _embed_texts(self, texts: Sequence[str]) -> Float64:
        vectors = np.asarray(self._embed(texts), np.float64)
        if vectors.ndim != 2 or vectors.shape[0] != len(texts):
            raise InternalError(f"embed gave the shape {vectors.shape} for {len(texts)} texts")
        return vectors

    @cached_property
    def _pool_embeddings(self) -> Float64:
        distinct_texts = list(dict.fromkeys(self._texts))
        row_of_text = {text: row for row, text in enumerate(distinct_texts)}
        return self._embed_texts(distinct_texts)[[row_of_text[text] for text in self._texts]]

    def _share_of_terms(self, terms: Sequence[str]) -> Float64:
        """Returns the share of terms that each text contains, float64 [texts]; case and punctuation do not count."""
        contained_terms = np.zeros(len(self._texts))
        for term in terms:
            term_key = duplicate_key(term)
            if not term_key:
                continue
            term_rows = set.intersection(*(self._file.postings.get(word, set()) for word in term_key.split()))
            for row in term_rows:
                contained_terms[row] += f" {term_key} " in f" {self._keys[row]} "
        return contained_terms / len(terms)


def _signed_examples(request: GenerationRequest) -> tuple[tuple[float, Sequence[str]], ...]:
    """Returns (sign, texts): the mean cosine to these texts counts in a text's score with this sign."""
    joined = (", ".join(request.terms),) if request.terms else ()
    return (1.0, request.good), (1.0, request.parents), (1.0, joined), (-1.0, request.bad)
