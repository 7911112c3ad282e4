"""The embedded generator: an interpolated n-gram model of a public corpus, so that everything runs without a key.

Jelinek-Mercer interpolation with Witten-Bell weights, drawn by ancestral sampling: at each word the longest context is
used with its weight, else the next shorter one. Every context is looked up in the label's own texts first and in the
texts of all labels if the label never saw it. Good examples are a cache (Kuhn and De Mori 1990): with probability
``cache`` the next word comes from their n-grams. Bad examples are a penalty: a word that completes an n-gram which is
theirs and not the good ones' is refused with probability ``penalty`` and drawn again.

The kinds of request: "paraphrase" hides every word of the first parent with probability one half, "fill_in" with the
request's rate, and the gaps are filled from left to right; "cross" writes with all parents as a strong cache; ``terms``
are inserted where the corpus has a word before them; every other kind is a text of the label. ``words`` sets the
length; without it lengths are those of the label's texts (or of the good ones).
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.text.row_files import column_names
from undersong_common.text.table import read_table
from undersong_protocol.agreement.words import NGRAM_WRITER
from undersong_server.generators.interface import (
    NAMES_FILE,
    Completion,
    Estimate,
    GenerationRequest,
    GeneratorSettings,
    StatelessGenerator,
    Surroundings,
    one_or_many,
)

_PARAPHRASED = 0.5  # chance of a paraphrase to replace a word
_CROSS_CACHE = 0.8  # probability that a crossed text's next word comes from its parents
_TRIES = 6  # draws before a refused word is taken after all
_COMMON = 0.2  # a word in a larger share of the texts does not distinguish them
_LONGEST_WORDS = 2000  # words of the longest text that is written

START, END = 0, 1
"""Token ids before and behind every text."""

# Weight of leaving a context with T different successors for a shorter one, in multiples of T: 1 as Witten and Bell
# (1991) have it, and little if only single words are shorter, because those do not make sentences.
_ESCAPE = 1.0
_ESCAPE_TO_WORDS = 0.02

_TOKEN = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # e.g., U.S.
    r"|\d+(?:[.,:/]\d+)*[^\W\d_]*(?:['’-][^\W_]+)*"  # 120/80, 3.5, 10mg, 62-year-old
    r"|[^\W_]+(?:['’-][^\W_]+)*"  # don't, follow-up
    r"|\n+"
    r"|([^\w\s]|_)\1*"  # one mark, or a run of it: "...", "--"
)
_SENTENCE_END = frozenset(".!?…\n")
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%…’'°/\n")
_NO_SPACE_AFTER = frozenset("([{#$£€/\n@")
_PAIRS = {"(": ")", "[": "]", "{": "}", "“": "”", "«": "»"}
_QUOTE = frozenset('"')
_CLOSERS = {closer: opener for opener, closer in _PAIRS.items()}


class NgramSettings(GeneratorSettings):
    """Settings of the embedded n-gram model over a public corpus.

    Attributes:
        corpus: JSONL file or files with ``text`` and, if there is one, ``label``: public texts only, never records.
        order: length of the longest n-gram, 2 to 4.
        temperature: below 1 frequent continuations become more frequent, above 1 rarer ones do.
        cache: probability that a word is drawn from the good examples' (or the parents') n-grams if those know the
            context.
        penalty: probability that a word that completes a distinctive n-gram of the bad examples is refused.
        shared: probability that a word is drawn from the model of all labels instead of the label's own.
    """

    kind: Literal["ngram"]
    corpus: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(one_or_many)] = Field(
        min_length=1, json_schema_extra=NAMES_FILE
    )
    order: int = Field(default=3, ge=2, le=4)
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    cache: float = Field(default=0.35, ge=0.0, le=1.0)
    penalty: float = Field(default=0.8, ge=0.0, lt=1.0)
    shared: float = Field(default=0.05, ge=0.0, le=1.0)

    @property
    def files(self) -> tuple[str, ...]:
        return self.corpus

    @property
    def writer(self) -> str:
        return NGRAM_WRITER

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Estimates no price, and 0.2 to 5 ms per text after 1.5 to 8 s of training on some thousand texts."""
        return Estimate(calls, (0, 0), (0.0, 0.0), (1.5 + 0.0002 * calls, 8.0 + 0.005 * calls))

    def check(self, surroundings: Surroundings) -> None:
        for path in self.corpus:
            _read_corpus(surroundings.folder / path, self.name)

    def build(self, surroundings: Surroundings) -> "NgramGenerator":
        return NgramGenerator(self, labels=surroundings.labels, folder=surroundings.folder)


KIND = NgramSettings


class Successors(NamedTuple):
    """Successors of one context: token ids in ascending order, and their weights summed up so far.

    ``escape`` is the probability of leaving the context for a shorter one.
    """

    tokens: list[int]
    cumulative: list[float]
    escape: float

    def pick(self, uniform: float) -> int:
        """Returns the token id at the quantile ``uniform``, in [0, 1), of the successors' distribution."""
        token_index = bisect_right(self.cumulative, uniform * self.cumulative[-1])
        return self.tokens[min(token_index, len(self.tokens) - 1)]


class Counts:
    """Successors of every context of 0 to order-1 tokens in a set of texts, the oldest token first.

    They are counted when they are asked for: of a large corpus few contexts ever are asked for.

    Args:
        texts: the ids of the tokens of each text; ids are at least 2.
        order: length of the longest n-gram, >= 2.
        temperature: counts are raised to 1/temperature before they become probabilities.
    """

    def __init__(self, texts: Sequence[Sequence[int]], order: int, temperature: float) -> None:
        self._followers = _followers(texts, range(order), order)
        self._temperature = temperature
        self._known: dict[tuple[int, ...], Successors] = {}

    def __contains__(self, context: tuple[int, ...]) -> bool:
        return context in self._followers

    def __getitem__(self, context: tuple[int, ...]) -> Successors:
        if context not in self._known:
            follower_tokens = self._followers[context]
            follower_counts = Counter(follower_tokens)
            tokens = sorted(follower_counts)
            distinct_share = len(tokens) * (_ESCAPE if len(context) > 1 else _ESCAPE_TO_WORDS)
            cumulative_weights = accumulate(follower_counts[token] ** (1.0 / self._temperature) for token in tokens)
            self._known[context] = Successors(
                tokens, list(cumulative_weights), distinct_share / (len(follower_tokens) + distinct_share)
            )
        return self._known[context]


def _followers(texts: Sequence[Sequence[int]], sizes: range, gram_length: int) -> dict[tuple[int, ...], list[int]]:
    """Lists the tokens that follow each context of ``sizes`` tokens in the texts, the texts' ends among them."""
    followers_of_context: dict[tuple[int, ...], list[int]] = {}
    for text in texts:
        padded_text = (*[START] * (gram_length - 1), *text, END)
        for size in sizes:
            for position in range(gram_length - 1, len(padded_text)):
                followers_of_context.setdefault(padded_text[position - size : position], []).append(
                    padded_text[position]
                )
    return followers_of_context


class _Model(NamedTuple):
    """Statistics of one label's texts; ``counts`` are those of its own texts, then those of all labels' texts."""

    counts: tuple[Counts, ...]
    lengths: tuple[int, ...]
    punctuated: bool  # most of its texts end with a sentence

    def follows(self, last: int, token: int) -> bool:
        """Returns True if the token ever followed the last one."""
        return any(token in counts[last,].tokens for counts in self.counts if (last,) in counts)


class _Influence(NamedTuple):
    """The influence of one request's examples on the model."""

    cache: dict[tuple[int, ...], list[int]]  # successors of each context in the good examples
    weight: float
    bad_words: frozenset[int]
    bad_pairs: frozenset[tuple[int, int]]


class NgramGenerator(StatelessGenerator):
    """Writes texts by an n-gram model of the corpus that the task names, which is trained at construction."""

    def __init__(self, settings: NgramSettings, *, labels: Sequence[str], folder: Path) -> None:
        """Reads and counts the corpus.

        Args:
            settings: the task's table.
            labels: the task's labels; rows of other labels, or without one, train the model of all labels only.
            folder: where relative paths start.

        Raises:
            ConfigurationError: a corpus file is missing, broken, or without the column ``text``.
        """
        self.name = settings.name
        self._settings = settings
        self._order = settings.order
        self._ids: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        self._surfaces: list[str] = ["", ""]
        corpus_rows = [row for path in settings.corpus for row in _read_corpus(folder / path, settings.name)]
        tokens = [tokenise(text) for text, _ in corpus_rows]
        self._learn_words(tokens)
        encoded_texts = [self._encode_tokens(text_tokens) for text_tokens in tokens]
        all_counts = Counts(encoded_texts, settings.order, settings.temperature)
        text_count_by_token = Counter(token for text in encoded_texts for token in set(text))
        self._common = frozenset(
            token for token, count in text_count_by_token.items() if count > _COMMON * len(encoded_texts)
        )
        self._models = {"": self._build_model(encoded_texts, (all_counts,))}
        for label in labels:
            label_texts = [
                text for text, (_, label_name) in zip(encoded_texts, corpus_rows, strict=True) if label_name == label
            ]
            if label_texts:
                label_counts = Counts(label_texts, settings.order, settings.temperature)
                self._models[label] = self._build_model(label_texts, (label_counts, all_counts))
        self.counts = {
            "corpus_rows": len(corpus_rows),
            "rows_of_other_labels": sum(label_name not in labels for _, label_name in corpus_rows),
            "labels_without_corpus": sum(label not in self._models for label in labels),
        }

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        for index, request in enumerate(requests):
            text = detokenise([self._surfaces[token] for token in self._write_tokens(request)])
            yield index, Completion(text) if text else GenerationError(f"{self.name}: wrote an empty text")

    # These methods count the corpus.

    def _learn_words(self, texts: Sequence[Sequence[str]]) -> None:
        """Gives ids to lower-cased tokens, and to each the form that it has inside a sentence."""
        words_inside: dict[str, Counter[str]] = {}
        for text in texts:
            is_start = True
            for token in text:
                word_forms = words_inside.setdefault(token.lower(), Counter())
                if not is_start:
                    word_forms[token] += 1
                is_start = (is_start and not is_word(token)) or ends_sentence(token)
        for word, word_forms in words_inside.items():
            self._ids[word] = self._add_surface(word_forms.most_common(1)[0][0] if word_forms else word)

    def _add_surface(self, surface: str) -> int:
        self._surfaces.append(surface)
        return len(self._surfaces) - 1

    def _encode_tokens(self, tokens: Sequence[str]) -> list[int]:
        """Returns the tokens' ids; a word of a request that the corpus does not have gets a new one, to be written too.

        Such words keep their case, so that a text never depends on which request brought a word up first.
        """
        ids = []
        for token in tokens:
            token_id = self._ids.get(token.lower()) or self._foreign.get(token)
            if token_id is None:
                token_id = self._foreign[token] = self._add_surface(token)
            ids.append(token_id)
        return ids

    def _build_model(self, texts: Sequence[Sequence[int]], counts: tuple[Counts, ...]) -> _Model:
        lengths = tuple(max(1, self._count_words(text)) for text in texts)
        whole_text_count = sum(ends_sentence(self._surfaces[text[-1]]) for text in texts if text)
        return _Model(counts, lengths, 2 * whole_text_count > len(texts))

    def _count_words(self, ids: Sequence[int]) -> int:
        return sum(is_word(self._surfaces[token]) for token in ids)

    # These methods write one text.

    def _write_tokens(self, request: GenerationRequest) -> list[int]:
        rng = Random(f"{self.name} {request.seed}")
        model = self._models.get(request.label) or self._models[""]
        good_texts = [self._encode_tokens(tokenise(text)) for text in request.good]
        bad_texts = [self._encode_tokens(tokenise(text)) for text in request.bad]
        parent_texts = [self._encode_tokens(tokenise(text)) for text in request.parents]
        cache_weight = self._settings.cache
        if request.kind in ("paraphrase", "fill_in") and parent_texts and parent_texts[0]:
            if request.kind == "fill_in":
                mask_rate = request.mask_rate
            else:
                mask_rate = _PARAPHRASED
            return self._refill_parent(
                model, parent_texts[0], mask_rate, self._example_influence(good_texts, bad_texts, cache_weight), rng
            )
        if request.kind == "cross" and parent_texts:
            good_texts, cache_weight = parent_texts, _CROSS_CACHE
        word_count = request.words
        if word_count is None:
            example_lengths = [max(1, self._count_words(text)) for text in good_texts if text]
            word_count = rng.choice(
                example_lengths if example_lengths and rng.random() < cache_weight else model.lengths
            )
        encoded_terms = [
            encoded_term for term in request.terms if (encoded_term := self._encode_tokens(tokenise(term)))
        ]
        rng.shuffle(encoded_terms)
        return self._walk_words(
            model,
            min(max(1, word_count), _LONGEST_WORDS),
            encoded_terms,
            self._example_influence(good_texts, bad_texts, cache_weight),
            rng,
        )

    def _example_influence(
        self, good: Sequence[Sequence[int]], bad: Sequence[Sequence[int]], weight: float
    ) -> _Influence:
        good_words = {token for text in good for token in text}
        good_pairs = {pair for text in good for pair in pairwise(text)}
        bad_words = {token for text in bad for token in text if is_word(self._surfaces[token])}
        bad_pairs = {pair for text in bad for pair in pairwise(text)}
        return _Influence(
            _followers(good, range(1, self._order), self._order),
            weight if good else 0.0,
            frozenset(bad_words - good_words - self._common),
            frozenset(bad_pairs - good_pairs),
        )

    def _walk_words(
        self, model: _Model, wanted_word_count: int, terms: list[list[int]], influence: _Influence, rng: Random
    ) -> list[int]:
        """Writes a text of about ``wanted_word_count`` words with every term in it.

        It ends at the first sentence end from that length on, or where the model draws an end from 90 % of it on, and
        is cut at 125 %. An end drawn too early begins another sentence.
        """
        stop_token = self._ids.get(".", self._ids.get("!"))
        context = [START] * (self._order - 1)
        text_tokens: list[int] = []
        word_count = 0
        words_since_term = 0
        sentence_end = 0
        kept_length = 0
        most_word_count = wanted_word_count + max(2, wanted_word_count // 4)
        words_per_term = max(2.0, 0.8 * wanted_word_count / max(1, len(terms)))
        for _ in range(4 * most_word_count + 40):
            next_term = self._next_term(model, context[-1], terms, words_since_term >= words_per_term)
            if next_term is not None:
                terms.remove(next_term)
                next_tokens = [*self._bridge_gap(model, context, next_term[0], influence, rng), *next_term]
                words_since_term = 0
            else:
                token = self._draw_token(model, context, influence, rng)
                for _ in range(3 if word_count >= wanted_word_count and not terms else 0):
                    if token == END or ends_sentence(self._surfaces[token]):
                        break
                    token = self._draw_token(model, context, influence, rng)
                if token == END:
                    if not terms and word_count >= 0.9 * wanted_word_count and text_tokens:
                        break
                    if text_tokens and stop_token is not None and not ends_sentence(self._surfaces[text_tokens[-1]]):
                        text_tokens.append(stop_token)
                    context = [START] * (self._order - 1)
                    continue
                next_tokens = [token]
                words_since_term += 1
            text_tokens += next_tokens
            kept_length = kept_length if next_term is None else len(text_tokens)
            context = [*context, *next_tokens][-(self._order - 1) :]
            word_count += self._count_words(next_tokens)
            if ends_sentence(self._surfaces[text_tokens[-1]]):
                sentence_end = len(text_tokens)
                if word_count >= wanted_word_count and not terms:
                    break
            if word_count >= most_word_count:
                if terms:
                    text_tokens += [token for term in terms for token in term]
                    kept_length = len(text_tokens)
                elif (
                    sentence_end >= kept_length
                    and self._count_words(text_tokens[:sentence_end]) >= 0.6 * wanted_word_count
                ):
                    text_tokens = text_tokens[:sentence_end]
                break
        return self._close_sentence(model, text_tokens, kept_length)

    def _close_sentence(self, model: _Model, text: list[int], kept_length: int) -> list[int]:
        """Cuts an unfinished end behind the first ``kept_length`` tokens, and adds a full stop if that is usual."""
        stop_token = self._ids.get(".")
        if text and ends_sentence(self._surfaces[text[-1]]):
            return text
        end_tokens = [END] if stop_token is None else [END, stop_token]
        for cut_length in range(len(text), max(kept_length, len(text) - _TRIES, 0), -1):
            if any(model.follows(text[cut_length - 1], end_token) for end_token in end_tokens):
                text = text[:cut_length]
                break
        if model.punctuated and stop_token is not None and text:
            return [*text, stop_token]
        return text

    def _next_term(self, model: _Model, last_token: int, terms: list[list[int]], due: bool) -> list[int] | None:
        """Returns the first term that followed ``last_token`` in the corpus; if one is ``due``, else the first."""
        for term in terms:
            if model.follows(last_token, term[0]):
                return term
        if terms and due:
            return terms[0]
        return None

    def _bridge_gap(
        self, model: _Model, context: list[int], target_token: int, influence: _Influence, rng: Random
    ) -> list[int]:
        """Returns at most one word to write between the text and a term that does not follow it in the corpus."""
        bridge_tokens = [context[-1], *(self._draw_token(model, context, influence, rng) for _ in range(_TRIES))]
        for try_number, bridge_token in enumerate(bridge_tokens):
            if model.follows(bridge_token, target_token):
                if try_number:
                    return [bridge_token]
                return []
        return []

    def _refill_parent(
        self, model: _Model, parent: Sequence[int], rate: float, influence: _Influence, rng: Random
    ) -> list[int]:
        """Draws each token of the parent anew with the probability ``rate``, so that its right neighbour can follow."""
        is_hidden = [rng.random() < rate for _ in parent]
        if ends_sentence(self._surfaces[parent[-1]]):
            is_hidden[-1] = False
        text_tokens: list[int] = []
        for position, token in enumerate(parent):
            if is_hidden[position]:
                context = [*[START] * (self._order - 1), *text_tokens][-(self._order - 1) :]
                right_token = None
                if position + 1 < len(parent) and not is_hidden[position + 1]:
                    right_token = parent[position + 1]
                token = self._fill_token(model, context, token, right_token, influence, rng)
            text_tokens.append(token)
        return text_tokens

    def _fill_token(
        self,
        model: _Model,
        context: list[int],
        old_token: int,
        right_token: int | None,
        influence: _Influence,
        rng: Random,
    ) -> int:
        chosen_token = old_token
        for _ in range(_TRIES):
            token = self._draw_token(model, context, influence, rng)
            if token in (END, old_token) or (right_token is not None and ends_sentence(self._surfaces[token])):
                continue
            chosen_token = token
            if right_token is None or model.follows(token, right_token):
                return token
        return chosen_token

    # These methods draw one word.

    def _draw_token(self, model: _Model, context: Sequence[int], influence: _Influence, rng: Random) -> int:
        """Draws a next token, which may be END; one that completes an n-gram of the bad examples is mostly refused."""
        token = self._draw_any(model, context, influence, rng)
        for _ in range(_TRIES):
            is_bad = token in influence.bad_words or (context[-1], token) in influence.bad_pairs
            if not is_bad or rng.random() >= self._settings.penalty:
                break
            token = self._draw_any(model, context, influence, rng)
        return token

    def _draw_any(self, model: _Model, context: Sequence[int], influence: _Influence, rng: Random) -> int:
        contexts = [tuple(context[len(context) - size :]) for size in range(self._order - 1, 0, -1)]
        if influence.weight and rng.random() < influence.weight:
            for known_context in contexts:
                if cached_tokens := influence.cache.get(known_context):
                    return cached_tokens[int(rng.random() * len(cached_tokens))]
        if rng.random() < self._settings.shared:
            count_sources = model.counts[-1:]
        else:
            count_sources = model.counts
        for known_context in contexts:
            successors = next((counts[known_context] for counts in count_sources if known_context in counts), None)
            if successors is not None and rng.random() >= successors.escape:
                return successors.pick(rng.random())
        token = END
        for _ in range(_TRIES):  # an unknown context is a poor reason to end, so END has to be drawn several times
            token = count_sources[0][()].pick(rng.random())
            if token != END:
                break
        return token


def _read_corpus(path: Path, name: str) -> list[tuple[str, str]]:
    """Reads the corpus as (text, label) rows; the label is "" if the file has none."""
    try:
        has_labels = "label" in column_names(path)
        corpus_table = read_table(path, "text", "label" if has_labels else None)
    except ConfigurationError as error:
        raise ConfigurationError(f"generator {name}: {error.problem}", error.remedy, code=error.code) from None
    return list(zip(corpus_table.texts, corpus_table.labels or ("",) * len(corpus_table), strict=True))


# The functions below turn a text into tokens (words, numbers, punctuation marks, line breaks) and back.


def tokenise(text: str) -> list[str]:
    """Splits a text into tokens, their case kept; several line breaks are one token.

    >>> tokenise("BP 120/80, doesn't hurt (much)...")
    ['BP', '120/80', ',', "doesn't", 'hurt', '(', 'much', ')', '...']
    """
    return ["\n" if match[0][0] == "\n" else match[0] for match in _TOKEN.finditer(text)]


def detokenise(tokens: Sequence[str]) -> str:
    """Joins tokens to a text with usual spacing, capital sentence starts and no unpaired bracket or quote.

    >>> detokenise(["can", "i", "(", "please", ")", "pay", "?", "thanks", ")"])
    'Can i (please) pay? Thanks'
    """
    joined_words: list[str] = []
    is_glued = True
    is_open = False
    is_sentence_start = True
    for token in _drop_unpaired(tokens):
        first_character = token[0]
        is_quote = token in _QUOTE
        closes_word = first_character in _NO_SPACE_BEFORE or token in _CLOSERS or (is_quote and is_open)
        if not is_glued and not closes_word:
            joined_words.append(" ")
        if is_sentence_start and first_character.isalnum():
            token = first_character.upper() + token[1:]
        joined_words.append(token)
        is_sentence_start = (is_sentence_start and not first_character.isalnum()) or ends_sentence(token)
        is_glued = first_character in _NO_SPACE_AFTER or token in _PAIRS or (is_quote and not is_open)
        is_open ^= is_quote
    return "".join(joined_words).strip()


def ends_sentence(token: str) -> bool:
    return token[0] in _SENTENCE_END


def is_word(token: str) -> bool:
    return token[0].isalnum()


def _drop_unpaired(tokens: Sequence[str]) -> list[str]:
    """Drops brackets and quotes that have no partner."""
    dropped_positions: set[int] = set()
    open_positions: list[int] = []
    for index, token in enumerate(tokens):
        if token in _PAIRS:
            open_positions.append(index)
        elif token in _CLOSERS:
            if open_positions and tokens[open_positions[-1]] == _CLOSERS[token] and open_positions[-1] < index - 1:
                open_positions.pop()
            else:
                dropped_positions.add(index)
    dropped_positions.update(open_positions)
    quote_positions = [index for index, token in enumerate(tokens) if token in _QUOTE]
    if len(quote_positions) % 2:
        dropped_positions.add(quote_positions[-1])
    return [token for index, token in enumerate(tokens) if index not in dropped_positions]
