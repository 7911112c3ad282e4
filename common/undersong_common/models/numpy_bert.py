"""Computes the packaged all-MiniLM-L6-v2, a BERT of six layers (Devlin et al. 2019), in numpy.

Numpy is as fast at it as torch, so that a party needs no torch. The cosine of both is above 1 - 1e-5; their bits
differ, and so do their fingerprints.

A text's vector depends on the text alone, to the last bit. The tokens of a batch stand side by side, in columns,
without padding. What mixes the tokens of a text, attention and the mean, is computed with arrays whose last axes have
the text's own length. The linear layers read lists of tokens of a fixed length, in which texts stand only at places
that the kernel treats alike (undersong_common.models.places). Everything else is arithmetic on one number or down one
column.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError
from undersong_common.models.encoders import Tokens, special_around
from undersong_common.models.places import TOKENS, Layer, Places, Product, features_by_tokens, like_places
from undersong_common.printable import encodable
from undersong_common.program.library_threads import one_library_thread

# x * sigmoid(x * p(x^2)) is within 3e-5 of GELU; coefficients of p, fitted by weighted least squares on [0, 6].
_GELU = tuple(np.float32(part) for part in (1.5950150649863502, 0.07401207108563489, -0.0007031960750579506))
_GELU_SQUARE = np.float32(36.0)  # largest x^2 for which p is computed; beyond it p keeps its value

_PROBE = "card"  # a text whose special tokens are those of any text
_TEXTS_A_BATCH = 8  # fewest texts for which a batch has room, so that the free places of its last list are few
_SCORES_AT_ONCE = 1 << 13  # scores of one head; those of all heads then stay in the second-level cache


@dataclass(frozen=True)
class _BertLayer:
    """Weights of one layer.

    ``attention`` gives queries, already scaled, then keys, then values; ``joined`` maps the heads' results; ``up`` and
    ``down`` are the two maps of the feed-forward block.
    """

    attention: Layer
    joined: Layer
    attention_norm: Layer
    up: Layer
    down: Layer
    norm: Layer


@dataclass(frozen=True)
class _TextGroup:
    """Texts of one length that follow each other: ``texts`` of them, ``length`` tokens each, ``step`` columns apart."""

    start: int
    texts: int
    length: int
    step: int

    def of(self, columns: Float32) -> Float32:
        """Returns a view of [rows, n] columns, [rows, texts, length]."""
        group_columns = columns[:, self.start : self.start + self.texts * self.step]
        return group_columns.reshape(len(columns), self.texts, self.step)[:, :, : self.length]


@dataclass(frozen=True)
class _TokenList:
    """A part of a batch that a linear layer multiplies at once.

    Columns ``start`` to ``stop`` of the batch stand there at places ``first`` and following of ``size`` places.
    """

    start: int
    stop: int
    first: int
    size: int

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + self.stop - self.start)

    def read(self, columns: Float32) -> Float32:
        """Returns this part of the batch's ``columns``, with zeros at the other places: [rows, n] -> [rows, size]."""
        tokens = np.zeros((len(columns), self.size), dtype=np.float32)
        tokens[:, self.places] = columns[:, self.start : self.stop]
        return tokens

    def write(self, tokens: Float32, columns: Float32) -> None:
        """Copies a product's result for this part, [rows, size], back to the batch's ``columns``, [rows, n]."""
        columns[:, self.start : self.stop] = tokens[:, self.places]


class NumpyBert:
    """A BERT with mean pooling, computed by numpy in float32 from the files of its folder.

    Raises ConfigurationError for weights or settings that are not such a model's.

    Attributes:
        window: largest number of tokens that the model reads at once, special tokens included.
        special: numbers of special tokens before a text's own tokens, and after them.
        places: where tokens stand in the products of the linear layers; None if each text has products of its own.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        settings = json.loads((folder / "config.json").read_bytes())
        weight_by_name = load_file(folder / "model.safetensors")
        if settings.get("model_type") != "bert" or settings.get("hidden_act") != "gelu":
            raise ConfigurationError(f"{folder}: is no BERT with GELU", "install the packaged model anew")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.window = int(json.loads((folder / "sentence_bert_config.json").read_bytes())["max_seq_length"])
        self.special = special_around(self._tokenizer.encode(_PROBE).special_tokens_mask)
        self._heads = int(settings["num_attention_heads"])
        self._epsilon = np.float32(settings["layer_norm_eps"])
        self._words = weight_by_name["embeddings.word_embeddings.weight"]
        token_type = weight_by_name["embeddings.token_type_embeddings.weight"][0]
        self._positions = weight_by_name["embeddings.position_embeddings.weight"] + token_type
        self._norm = _read_layer(weight_by_name, "embeddings.LayerNorm")
        self._layers = [
            self._read_layer(weight_by_name, f"encoder.layer.{layer_number}.")
            for layer_number in range(settings["num_hidden_layers"])
        ]
        first_layer = self._layers[0]
        with one_library_thread():
            self.places: Places | None = like_places(
                [first_layer.attention, first_layer.joined, first_layer.up, first_layer.down]
            )

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [
            encoding.ids for encoding in self._tokenizer.encode_batch_fast([encodable(text.strip()) for text in texts])
        ]

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Returns the numbers of the windows of each batch, the longest windows first; ``lengths`` are their tokens."""
        if self.places is None:
            length_step = 1
            batch_token_count = TOKENS
        else:
            length_step = self.places.period
            batch_token_count = self.places.count
        batches: list[list[int]] = []
        free_count = 0
        for window_number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
            column_count = -(-lengths[window_number] // length_step) * length_step
            if column_count > free_count:
                batches.append([])
                free_count = -(-_TEXTS_A_BATCH * column_count // batch_token_count) * batch_token_count
            batches[-1].append(window_number)
            free_count -= column_count
        return batches

    def vectors(self, windows: Sequence[Tokens]) -> Float32:
        """Returns one vector per window, float32 [n, d]; ``windows`` are those of a batch, the longest first."""
        text_groups = list(
            _group_texts([len(window) for window in windows], 1 if self.places is None else self.places.period)
        )
        token_lists = _token_lists(text_groups, self.places)
        matrix_product = features_by_tokens if self.places is None else self.places.product
        columns = self._embed_tokens(windows, text_groups, token_lists[-1].stop)
        list_states = [tokens.read(columns) for tokens in token_lists]
        for list_state in list_states:
            _normalise(list_state, self._norm, self._epsilon)
        columns.fill(0)
        mixed_columns = np.empty((3 * len(columns), columns.shape[1]), dtype=np.float32)
        for layer in self._layers:
            for tokens, list_state in zip(token_lists, list_states, strict=True):
                tokens.write(matrix_product(list_state, layer.attention), mixed_columns)
            self._attend(mixed_columns, columns, text_groups)
            for list_number, tokens in enumerate(token_lists):
                list_states[list_number] = self._transform_list(
                    tokens.read(columns), list_states[list_number], layer, matrix_product
                )
        for tokens, list_state in zip(token_lists, list_states, strict=True):
            tokens.write(list_state, columns)
        text_means: Float32 = np.concatenate([group.of(columns).mean(axis=2).T for group in text_groups])
        return text_means

    def _embed_tokens(self, windows: Sequence[Tokens], groups: Sequence[_TextGroup], column_count: int) -> Float32:
        """Returns the sum of word and position embeddings of every token, float32 [d, n]; 0 between the texts."""
        embedded_tokens = np.zeros((self._words.shape[1], column_count), dtype=np.float32)
        window_start = 0
        for text_group in groups:
            ids = np.stack(windows[window_start : window_start + text_group.texts])
            token_rows = self._words[ids] + self._positions[: text_group.length]
            text_group.of(embedded_tokens)[:] = token_rows.transpose(2, 0, 1)
            window_start += text_group.texts
        return embedded_tokens

    def _attend(self, mixed: Float32, context: Float32, groups: Sequence[_TextGroup]) -> None:
        """Writes the result of attention to ``context`` [d, n]; ``mixed`` [3 d, n] holds queries, keys and values."""
        head_size = len(context) // self._heads
        for text_group in groups:
            query_key_value = text_group.of(mixed).reshape(
                3, self._heads, head_size, text_group.texts, text_group.length
            )
            queries, keys, values = query_key_value.transpose(0, 3, 1, 2, 4)  # each [texts, heads, size, length]
            attention_scores = queries.swapaxes(-1, -2) @ keys
            attention_scores -= attention_scores.max(axis=-1, keepdims=True)
            np.exp(attention_scores, out=attention_scores)
            attended_values = values @ attention_scores.swapaxes(-1, -2)
            attended_values /= attention_scores.sum(axis=-1)[:, :, None, :]
            group_heads = text_group.of(context).reshape(self._heads, head_size, text_group.texts, text_group.length)
            group_heads[:] = attended_values.transpose(1, 2, 0, 3)

    def _transform_list(self, context: Float32, state: Float32, layer: _BertLayer, product: Product) -> Float32:
        """Returns the tokens' state after a layer, from ``state`` before it and the result of attention; all [d, n]."""
        attended_context = product(context, layer.joined)
        attended_context += state
        _normalise(attended_context, layer.attention_norm, self._epsilon)
        transformed_state = product(_gelu(product(attended_context, layer.up)), layer.down)
        transformed_state += attended_context
        _normalise(transformed_state, layer.norm, self._epsilon)
        return transformed_state

    def _read_layer(self, weights: dict[str, Float32], prefix: str) -> _BertLayer:
        query_scale = np.float32((self._words.shape[1] // self._heads) ** -0.5)
        queries, keys, values = (
            _read_layer(weights, f"{prefix}attention.self.{projection_name}")
            for projection_name in ("query", "key", "value")
        )
        weight_and_bias = [(queries[0] * query_scale, queries[1] * query_scale), keys, values]
        return _BertLayer(
            attention=(
                np.concatenate([weight_part for weight_part, _ in weight_and_bias]),
                np.concatenate([bias for _, bias in weight_and_bias]),
            ),
            joined=_read_layer(weights, f"{prefix}attention.output.dense"),
            attention_norm=_read_layer(weights, f"{prefix}attention.output.LayerNorm"),
            up=_read_layer(weights, f"{prefix}intermediate.dense"),
            down=_read_layer(weights, f"{prefix}output.dense"),
            norm=_read_layer(weights, f"{prefix}output.LayerNorm"),
        )


def _read_layer(weights: dict[str, Float32], name: str) -> Layer:
    """Returns a layer's weights and bias for inputs that are columns; a vector becomes a column."""
    weight = np.ascontiguousarray(weights[f"{name}.weight"])
    return weight if weight.ndim > 1 else weight[:, None], weights[f"{name}.bias"][:, None]


def _group_texts(lengths: Sequence[int], step: int) -> Iterator[_TextGroup]:
    """Yields groups of texts of equal length, of a size that fits the cache; texts begin at multiples of ``step``."""
    group_start = first_index = 0
    while first_index < len(lengths):
        text_length = lengths[first_index]
        most_texts = max(1, _SCORES_AT_ONCE // (text_length * text_length))
        text_count = 1
        while (
            text_count < most_texts
            and first_index + text_count < len(lengths)
            and lengths[first_index + text_count] == text_length
        ):
            text_count += 1
        group = _TextGroup(group_start, text_count, text_length, -(-text_length // step) * step)
        yield group
        group_start += text_count * group.step
        first_index += text_count


def _token_lists(groups: Sequence[_TextGroup], places: Places | None) -> list[_TokenList]:
    """Returns the parts of a batch for the linear layers: of a fixed length, or one per text without ``places``."""
    if places is None:
        text_starts = [group.start + text_number * group.step for group in groups for text_number in range(group.texts)]
        text_lengths = [group.length for group in groups for _ in range(group.texts)]
        return [
            _TokenList(text_start, text_start + text_length, 0, text_length)
            for text_start, text_length in zip(text_starts, text_lengths, strict=True)
        ]
    width = groups[-1].start + groups[-1].texts * groups[-1].step
    return [
        _TokenList(group_start, group_start + places.count, places.first, TOKENS)
        for group_start in range(0, width, places.count)
    ]


def _normalise(state: Float32, layer_norm: Layer, epsilon: np.float32) -> None:
    """Applies layer normalisation to each column of ``state`` [d, n], in place."""
    state -= state.mean(axis=0)
    variances = np.square(state).sum(axis=0)
    variances /= np.float32(len(state))
    variances += epsilon
    state *= np.float32(1) / np.sqrt(variances)
    state *= layer_norm[0]
    state += layer_norm[1]


def _gelu(values: Float32) -> Float32:
    """Returns GELU of each value within 3e-5, float32 of the same shape."""
    squares = np.minimum(values * values, _GELU_SQUARE)
    odds: Float32 = squares * -_GELU[2]
    odds -= _GELU[1]
    odds *= squares
    odds -= _GELU[0]
    odds *= values
    with np.errstate(over="ignore"):  # The exponential may be infinite; the result is then zero.
        np.exp(odds, out=odds)
    odds += np.float32(1)
    np.divide(values, odds, out=odds)
    return odds
