"""Verbatim and near-verbatim overlap of synthetic texts with a file, found by whoever holds that file, locally.

The result names rows of the *synthetic* file only. Texts are compared as word sequences after folding case, width,
punctuation and spaces. Everything is set arithmetic on 64-bit hashes of word sequences: linear in the words of both
files, except for the Jaccard step, which is a sparse product over pairs of neighbouring words.
"""

import re
import unicodedata
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undersong_common.arrays import Bools, Float32, Float64, Floats, Int64, UInt64
from undersong_common.intervals import Interval, clopper_pearson

RUN_WORDS = 8
CONTAINED = 0.5
JACCARD = 0.6
# Japanese and Chinese are written without spaces: there a character counts as a word.
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:['’][^\W{_UNSPACED}]+)*")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2^64
_BASE_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_BLOCK_ROWS = 256
_PAIRS = 20_000


@dataclass(frozen=True)
class Overlap:
    """Overlap of a synthetic file with a file of records; rows are counted from 1 in the synthetic file.

    Each row is in at most one of the three lists, the first that applies to it.

    Attributes:
        rows: synthetic texts examined.
        verbatim: rows equal to a record word by word.
        near_verbatim: rows with ``JACCARD`` or more of their word pairs in common with one record, or with
            ``CONTAINED`` or more of their 8-word sequences found in the file.
        shared_run: other rows with ``RUN_WORDS`` or more consecutive words of a record.
        longest_run: words in the longest sequence that a row shares with a record; 0 if shorter than ``RUN_WORDS``.
        runs: for each row that shares ``RUN_WORDS`` or more words in sequence, the longest such sequence, in words.
    """

    rows: int
    verbatim: tuple[int, ...]
    near_verbatim: tuple[int, ...]
    shared_run: tuple[int, ...]
    longest_run: int
    runs: dict[int, int]

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as values that JSON can hold."""
        return {
            "rows": self.rows,
            "verbatim": {"count": len(self.verbatim), "rows": list(self.verbatim)},
            "near_verbatim": {"count": len(self.near_verbatim), "rows": list(self.near_verbatim)},
            "shared_run": {"count": len(self.shared_run), "rows": list(self.shared_run)},
            "longest_run_words": self.longest_run,
            "run_words": {str(row_number): run_words for row_number, run_words in sorted(self.runs.items())},
        }


def words(text: str) -> list[str]:
    """Returns a text's words after Unicode NFKC and case folding, without punctuation and spaces.

    >>> words("Pt.  C/O\\u00a0Fever;")
    ['pt', 'c', 'o', 'fever']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def find_overlap(synthetic: Sequence[str], private: Sequence[str]) -> Overlap:
    """Finds the synthetic texts that repeat private ones, verbatim or nearly; every pair of texts is compared."""
    vocabulary: dict[str, int] = {}
    synthetic_corpus = _Corpus.read(synthetic, vocabulary)
    private_corpus = _Corpus.read(private, vocabulary)
    # Words get random 64-bit values, so that different sequences have equal sums as rarely as random numbers are equal.
    token_hashes = np.random.default_rng(0x0EA1).integers(0, 1 << 64, size=len(vocabulary) + 1, dtype=np.uint64)
    is_verbatim = _mark_verbatim(synthetic_corpus, private_corpus)
    contained_shares, longest_runs = _shared_runs(synthetic_corpus, private_corpus, token_hashes)
    padding_token = len(vocabulary)
    is_near = (contained_shares >= CONTAINED) | _mark_resembling(
        synthetic_corpus.padded(padding_token), private_corpus.padded(padding_token), token_hashes
    )
    is_near &= ~is_verbatim
    has_shared_run = (longest_runs >= RUN_WORDS) & ~is_near & ~is_verbatim
    return Overlap(
        rows=len(synthetic),
        verbatim=_row_numbers(is_verbatim),
        near_verbatim=_row_numbers(is_near),
        shared_run=_row_numbers(has_shared_run),
        longest_run=int(longest_runs.max(initial=0)),
        runs={int(row_number) + 1: int(longest_runs[row_number]) for row_number in np.flatnonzero(longest_runs)},
    )


def _row_numbers(chosen: Bools) -> tuple[int, ...]:
    return tuple(int(row_number) + 1 for row_number in np.flatnonzero(chosen))


@dataclass(frozen=True, eq=False)
class _Corpus:
    """Word numbers of all texts in one array; text i is tokens[starts[i]:starts[i + 1]]."""

    tokens: Int64
    starts: Int64

    @staticmethod
    def read(texts: Sequence[str], vocabulary: dict[str, int]) -> "_Corpus":
        tokens = array("q")
        starts = array("q", [0])
        for text in texts:
            tokens.extend([vocabulary.setdefault(word, len(vocabulary)) for word in words(text)])
            starts.append(len(tokens))
        return _Corpus(np.array(tokens, dtype=np.int64), np.array(starts, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Int64:
        return np.diff(self.starts)

    def take(self, text_numbers: Int64) -> "_Corpus":
        """Returns the texts with these numbers, in this order."""
        text_lengths = self.lengths[text_numbers]
        text_starts = np.concatenate(([0], np.cumsum(text_lengths))).astype(np.int64)
        positions = np.repeat(self.starts[text_numbers] - text_starts[:-1], text_lengths) + np.arange(text_starts[-1])
        return _Corpus(self.tokens[positions], text_starts)

    def padded(self, padding_token: int) -> "_Corpus":
        """Returns the texts, each with ``padding_token`` before and after its words; one without words stays empty."""
        has_words = self.lengths > 0
        padding_positions = np.concatenate((self.starts[:-1][has_words], self.starts[1:][has_words]))
        paddings_before = 2 * np.concatenate(([0], np.cumsum(has_words)))
        return _Corpus(np.insert(self.tokens, np.sort(padding_positions), padding_token), self.starts + paddings_before)

    def sequences(self, sequence_length: int, token_hashes: UInt64) -> tuple[UInt64, Int64]:
        """Returns the hash of every run of ``sequence_length`` words within one text, and the number of that text."""
        token_count = len(self.tokens)
        powers = np.ones(token_count + 1, dtype=np.uint64)
        inverse_powers = np.ones(token_count + 1, dtype=np.uint64)
        powers[1:] = _BASE
        inverse_powers[1:] = _BASE_INVERSE
        powers = np.cumprod(powers, dtype=np.uint64)
        inverse_powers = np.cumprod(inverse_powers, dtype=np.uint64)
        prefix_sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(token_hashes[self.tokens] * powers[:-1])))
        text_numbers = np.repeat(np.arange(len(self)), self.lengths)
        positions = np.arange(token_count)
        if token_count:
            is_within_text = positions + sequence_length <= self.starts[1:][text_numbers]
        else:
            is_within_text = np.zeros(0, dtype=bool)
        sequence_starts = positions[is_within_text]
        sequence_sums = prefix_sums[sequence_starts + sequence_length] - prefix_sums[sequence_starts]
        return sequence_sums * inverse_powers[sequence_starts], text_numbers[is_within_text]


def _mark_verbatim(synthetic: _Corpus, private: _Corpus) -> Bools:
    private_token_bytes = {
        private.tokens[text_start:stop].tobytes()
        for text_start, stop in zip(private.starts[:-1], private.starts[1:], strict=True)
        if stop > text_start
    }
    return np.array(
        [
            synthetic.tokens[start:stop].tobytes() in private_token_bytes
            for start, stop in zip(synthetic.starts[:-1], synthetic.starts[1:], strict=True)
        ],
        dtype=bool,
    )


def _shared_runs(synthetic: _Corpus, private: _Corpus, token_hashes: UInt64) -> tuple[Float64, Int64]:
    """Returns for each synthetic text the share of its 8-word runs that private texts hold, and its longest shared run.

    The longest run is in words, 0 below 8.
    """
    synthetic_text_of_run, private_text_of_run = _matching_texts(synthetic, private, RUN_WORDS, token_hashes)
    run_counts = np.bincount(synthetic.sequences(RUN_WORDS, token_hashes)[1], minlength=len(synthetic))
    contained_shares = np.bincount(synthetic_text_of_run, minlength=len(synthetic)) / np.maximum(run_counts, 1)
    longest_runs = np.zeros(len(synthetic), dtype=np.int64)
    row_numbers = np.unique(synthetic_text_of_run)
    longest_runs[row_numbers] = RUN_WORDS
    length_bound = int(synthetic.lengths.max(initial=0)) + 1
    _lengthen_runs(
        synthetic,
        private,
        row_numbers,
        np.unique(private_text_of_run),
        RUN_WORDS,
        length_bound,
        longest_runs,
        token_hashes,
    )
    return contained_shares, longest_runs


def _lengthen_runs(
    synthetic: _Corpus,
    private: _Corpus,
    row_numbers: Int64,
    record_numbers: Int64,
    least_length: int,
    length_bound: int,
    longest_runs: Int64,
    token_hashes: UInt64,
) -> None:
    """Writes into ``longest_runs`` the longest run, in words, that each of the texts shares with the records.

    It bisects; the length is known to be >= ``least_length`` and < ``length_bound``. A text that shares n words in a
    row shares every smaller number, so texts that share no run of ``middle`` words stay below it. Only records that
    share such a run can share a longer one.
    """
    if not len(row_numbers) or length_bound - least_length <= 1:
        return
    middle = min(2 * least_length, (least_length + length_bound) // 2)
    synthetic_text_of_run, private_text_of_run = _matching_texts(
        synthetic.take(row_numbers), private.take(record_numbers), middle, token_hashes
    )
    has_longer_run = np.zeros(len(row_numbers), dtype=bool)
    has_longer_run[synthetic_text_of_run] = True
    longest_runs[row_numbers[has_longer_run]] = middle
    _lengthen_runs(
        synthetic,
        private,
        row_numbers[has_longer_run],
        record_numbers[np.unique(private_text_of_run)],
        middle,
        length_bound,
        longest_runs,
        token_hashes,
    )
    _lengthen_runs(
        synthetic,
        private,
        row_numbers[~has_longer_run],
        record_numbers,
        least_length,
        middle,
        longest_runs,
        token_hashes,
    )


def _matching_texts(
    synthetic: _Corpus, private: _Corpus, sequence_length: int, token_hashes: UInt64
) -> tuple[Int64, Int64]:
    """Returns the numbers of the synthetic and of the private text of each shared run of ``sequence_length`` words."""
    synthetic_sequences, synthetic_texts = synthetic.sequences(sequence_length, token_hashes)
    private_sequences, private_texts = private.sequences(sequence_length, token_hashes)
    # The first search leaves few private runs, so that the second one searches among few.
    is_shared = np.isin(private_sequences, synthetic_sequences)
    return synthetic_texts[np.isin(synthetic_sequences, private_sequences[is_shared])], private_texts[is_shared]


def _mark_resembling(synthetic: _Corpus, private: _Corpus, token_hashes: UInt64) -> Bools:
    """Returns True for each padded synthetic text that has a Jaccard index >= JACCARD with a private one.

    The sets hold pairs of neighbouring words. Single words would not tell a rewritten sentence from one that merely has
    the same subject. Two sets of n members with that index share one of their n - ceil(JACCARD n) + 1 rarest members
    (prefix filtering, Chaudhuri et al. 2006). So only these are compared first, because frequent pairs of words would
    cost nearly all of the time.
    """
    resembles = np.zeros(len(synthetic), dtype=bool)
    if not len(synthetic.tokens) or not len(private.tokens):
        return resembles
    synthetic_pairs, private_pairs = _pair_matrices(synthetic, private, token_hashes)
    synthetic_sizes = np.diff(synthetic_pairs.indptr)
    private_sizes = np.diff(private_pairs.indptr)
    rarest_private = _rarest_members(private_pairs).T.tocsr()
    rarest_synthetic = _rarest_members(synthetic_pairs)
    for block_start in range(0, len(synthetic), _BLOCK_ROWS):
        candidates = (rarest_synthetic[block_start : block_start + _BLOCK_ROWS] @ rarest_private).tocoo()
        synthetic_numbers = block_start + candidates.row.astype(np.int64)
        private_numbers = candidates.col.astype(np.int64)
        smaller_size = np.minimum(synthetic_sizes[synthetic_numbers], private_sizes[private_numbers])
        larger_size = np.maximum(synthetic_sizes[synthetic_numbers], private_sizes[private_numbers])
        is_possible = smaller_size >= JACCARD * larger_size
        synthetic_numbers = synthetic_numbers[is_possible]
        private_numbers = private_numbers[is_possible]
        for pair_start in range(0, len(synthetic_numbers), _PAIRS):
            i = synthetic_numbers[pair_start : pair_start + _PAIRS]
            j = private_numbers[pair_start : pair_start + _PAIRS]
            common_count = synthetic_pairs[i].multiply(private_pairs[j]).sum(axis=1)
            resembles[i[common_count >= JACCARD * (synthetic_sizes[i] + private_sizes[j] - common_count)]] = True
    return resembles


def _rarest_members(matrix: Any) -> Any:
    """Returns a matrix with each row's rarest n - ceil(JACCARD n) + 1 members only; column 0 is the rarest."""
    from scipy.sparse import csr_array

    sizes = np.diff(matrix.indptr)
    kept_counts = np.where(sizes > 0, sizes - np.ceil(JACCARD * sizes - 1e-9).astype(np.int64) + 1, 0)
    positions = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], sizes)
    is_rarest = positions < np.repeat(kept_counts, sizes)
    pointers = np.concatenate(([0], np.cumsum(kept_counts)))
    return csr_array((matrix.data[is_rarest], matrix.indices[is_rarest], pointers), shape=matrix.shape)


def _pair_matrices(synthetic: _Corpus, private: _Corpus, token_hashes: UInt64) -> tuple[Any, Any]:
    """Returns two binary matrices, texts by pairs of neighbouring words; the rarest pair is column 0."""
    from scipy.sparse import csr_array

    pairs, texts = zip(*(corpus.sequences(2, token_hashes) for corpus in (synthetic, private)), strict=True)
    _, columns, pair_counts = np.unique(np.concatenate(pairs), return_inverse=True, return_counts=True)
    rarity_rank = np.empty(len(pair_counts), dtype=np.int64)
    rarity_rank[np.argsort(pair_counts, kind="stable")] = np.arange(len(pair_counts))
    columns = rarity_rank[columns]
    matrices = []
    for corpus, text_rows, text_columns in zip(
        (synthetic, private), texts, np.split(columns, [len(pairs[0])]), strict=True
    ):
        matrix = csr_array(
            (np.ones(len(text_columns), dtype=np.float32), (text_rows, text_columns)),
            shape=(len(corpus), len(pair_counts)),
        )
        matrix.sum_duplicates()
        matrix.sort_indices()
        matrix.data[:] = 1.0
        matrices.append(matrix)
    return matrices[0], matrices[1]


# The functions below compare the distances to the closest training record and to the closest held-out record.

BLOCK_ROWS = 1024  # rows of a distance block: 1 024 x 50 000 float32 are 200 MB
LOW_SHARE = 0.05  # quantile that is stated in addition to the median, since only few texts are near copies


@dataclass(frozen=True)
class ClosestRecords:
    """Distances of synthetic texts to the closest training record and to the closest of as many held-out records.

    A distance is 1 - cosine of two embeddings, from 0 to 2.

    Attributes:
        rows: synthetic texts.
        records: records on each side.
        closer: share of the synthetic texts that are nearer to a training record than to every held-out one, ties half
            (Platzer and Reutterer 2021, section 3.3): about 0.5 where nothing was copied. The interval takes the texts
            as independent.
        training, holdout: 5 % quantile and median of the distances to the closest record of each side.
    """

    rows: int
    records: int
    closer: Interval
    training: tuple[float, float]
    holdout: tuple[float, float]


def closest_records(synthetic: Float32, training: Float32, holdout: Float32, *, seed: int = 0) -> ClosestRecords:
    """Compares the distances of synthetic texts to the closest row of ``training`` and of ``holdout``.

    All three are unit embeddings, float32 [n, d]. Equally many rows of ``training`` and ``holdout`` are drawn with the
    seed, because among more records the closest one is closer. Raises ValueError if an array is empty.
    """
    if not len(synthetic) or not len(training) or not len(holdout):
        raise ValueError("synthetic, training or holdout has no rows, and each needs at least one")
    training_rows, holdout_rows = equal_rows(training, holdout, seed=seed)
    training_distances = closest_distances(synthetic, training_rows)
    holdout_distances = closest_distances(synthetic, holdout_rows)
    win_count = float((training_distances < holdout_distances).sum()) + 0.5 * float(
        (training_distances == holdout_distances).sum()
    )
    return ClosestRecords(
        rows=len(synthetic),
        records=len(training_rows),
        closer=clopper_pearson(round(win_count), len(synthetic)),
        training=_distance_quantiles(training_distances),
        holdout=_distance_quantiles(holdout_distances),
    )


def closest_distances(rows: Float32, records: Float32) -> Float64:
    """Returns 1 - cosine of each row of unit embeddings [n, d] and its closest record [m, d], float64 [n].

    It works on a block of rows at a time, so that memory is O(n + m).
    """
    similarities = np.empty(len(rows))
    for block_start in range(0, len(rows), BLOCK_ROWS):
        similarities[block_start : block_start + BLOCK_ROWS] = (
            rows[block_start : block_start + BLOCK_ROWS] @ records.T
        ).max(axis=1)
    return np.maximum(1.0 - similarities, 0.0)


def _distance_quantiles(distances: Float64) -> tuple[float, float]:
    low, middle = np.quantile(distances, [LOW_SHARE, 0.5])
    return float(low), float(middle)


def equal_rows(
    first_array: Floats, second_array: Floats, *, rows: int | None = None, seed: int = 0
) -> tuple[Floats, Floats]:
    """Draws equally many rows of two arrays, as :func:`equal_choice` chooses them."""
    first_numbers, second_numbers = equal_choice(len(first_array), len(second_array), rows=rows, seed=seed)
    return first_array[first_numbers], second_array[second_numbers]


def equal_choice(first_size: int, second_size: int, *, rows: int | None = None, seed: int = 0) -> tuple[Int64, Int64]:
    """Draws equally many row numbers from each of two sets of rows, without replacement.

    Returns two sorted int64 arrays of length ``rows``, or of the smaller set's size if it is None. Raises ValueError if
    a set has fewer than ``rows``.
    """
    available = min(first_size, second_size)
    row_count = available if rows is None else rows
    if row_count > available:
        raise ValueError(f"cannot draw {row_count} rows of {first_size} and of {second_size}: {available} are allowed")
    rng = np.random.default_rng([seed, 0xE9])

    def draw(size: int) -> Int64:
        if size == row_count:
            return np.arange(size)
        return np.sort(rng.choice(size, size=row_count, replace=False))

    return draw(first_size), draw(second_size)
