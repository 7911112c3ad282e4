"""A language model in a local folder, causal or sequence to sequence (T5), on the CPU or a GPU.

Nothing is downloaded and no code of the folder runs.

Every request has its own stream of chance, so that its answer does not depend on the requests it shares a batch with
(but for rounding): each row draws its tokens by uniform numbers from its own seed. A model whose texts depend on their
neighbours all the same (a mixture of experts, a state that padding changes) gets batches of one.
"""

from __future__ import annotations

import importlib.util
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from undersong_common.errors import ConfigurationError, GenerationError, UndersongError
from undersong_common.models.hidden_states import Axes
from undersong_common.models.model_files import check_language_model, has_experts
from undersong_protocol.agreement.words import LOCAL_MODEL_WRITER
from undersong_server.cluster import Cluster, at_this_machine
from undersong_server.generators.cleaning import THINKING_MARKS, without_thinking
from undersong_server.generators.interface import (
    Completion,
    Estimate,
    GenerationRequest,
    Generator,
    GeneratorSettings,
    LanguageModelSettings,
    Preference,
    PromptFormat,
    StatelessGenerator,
    Surroundings,
    TunableGenerator,
    Tuning,
    embeds_nothing,
    expected_tokens,
    prompt_room,
)

if TYPE_CHECKING:
    import torch

# Prompts of several lengths with which a model is tested for batches, and the tokens that it writes to each
_CHECKED_PROMPTS = ("Once upon a time there was", "My", "A nurse writes: the patient has had a fever since Monday, and")
_CHECKED_TOKENS = 12
_PROBE_TURN, _PROBE_THOUGHT = "PROBETURN", "PROBETHOUGHT"  # stand in a chat template's place of a turn and of thinking
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")  # fields that templates read a turn's thinking from
_REMEDY = "name a complete folder of a language model (config, safetensors, tokenizer)"


class TransformersSettings(LanguageModelSettings):
    """Settings of a model in a local folder that the library transformers runs, causal or sequence to sequence (T5).

    Attributes:
        path: folder as ``save_pretrained`` writes it, tokenizer included.
        style: "chat" asks, through the tokenizer's chat template if it has one; "completion" has the model continue.
        temperature: 0 decodes greedily.
        top_p: nucleus of the sampling; 1 is all.
        max_new_tokens: longest answer in tokens.
        device: "auto" takes the first GPU if there is one; else "cpu", "cuda", "cuda:1", "mps".
        device_map: for a model that no single device holds, as accelerate takes it: "auto", "balanced",
            "balanced_low_0", "sequential", or the device of each part by name. "" puts it whole on ``device``.
        quantization: weights in fewer bits, by bitsandbytes: "nf4" and "fp4" (4 bits), "int8"; "" the folder's own.
        double_quantization: quantizes the scales of 4-bit weights, too (0.4 bits a weight less).
        dtype: "auto" is the folder's own on a GPU and float32 on a CPU; with 4 bits it is what is computed in.
        batch_size: prompts at once.
    """

    kind: Literal["transformers"]
    path: str = Field(min_length=1)
    style: Literal["chat", "completion"] = "chat"
    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int = Field(default=256, ge=1)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    device_map: Literal["", "auto", "balanced", "balanced_low_0", "sequential"] | dict[str, int | str] = ""
    quantization: Literal["", "nf4", "fp4", "int8"] = ""
    double_quantization: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_size: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _one_place(self) -> TransformersSettings:
        if self.device_map and self.device != "auto":
            raise ValueError("device and device_map both place the model; give one of them")
        if self.double_quantization and self.quantization not in ("nf4", "fp4"):
            raise ValueError('double_quantization is of 4-bit weights: set quantization = "nf4" or "fp4"')
        return self

    @property
    def longest_answer(self) -> int:
        return self.max_new_tokens

    @property
    def together(self) -> int:
        """Number of requests that a cluster's worker gets at once; if the worker is lost, so many answers are."""
        return 4 * self.batch_size  # prompts of like length share a batch

    @property
    def gpus(self) -> int:
        """Number of GPUs that the model takes on a cluster that has any."""
        if self.device == "cpu":
            return 0
        return 1

    @property
    def steerable(self) -> str:
        return self.path

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def writer(self) -> str:
        return LOCAL_MODEL_WRITER

    @property
    def packages(self) -> tuple[str, ...]:
        return ("torch", "transformers")

    def check(self, surroundings: Surroundings) -> None:
        check_language_model(surroundings.folder / self.path, f"generator {self.name}")

    def context(self, folder: Path) -> int | None:
        """Returns the longest context of the model, in tokens, as its folder states it; None if it does not."""
        try:
            model_config = json.loads((folder / self.path / "config.json").read_text(encoding="utf-8"))
            position_count: int | None = model_config.get("max_position_embeddings") or model_config.get("n_positions")
        except (OSError, ValueError, AttributeError):
            return None
        return position_count

    def prompt_format(self, folder: Path) -> PromptFormat:
        return PromptFormat(style=self.style, prompt_tokens=prompt_room(self.context(folder), self.max_new_tokens))

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Estimates the time of the batches: shortest answers at 50 steps/s (low), to longest answers at 2 steps/s."""
        prompts, answers = expected_tokens(calls, prompt_words, self.max_new_tokens, answer_words)
        batch_share = -(-calls // self.batch_size) / max(1, calls)
        seconds = batch_share * answers[0] / 50.0, batch_share * answers[1] / 2.0
        return Estimate(calls, (prompts[0] + answers[0], prompts[1] + answers[1]), (0.0, 0.0), seconds)

    def build(self, surroundings: Surroundings) -> TransformersGenerator:
        return TransformersGenerator(self, folder=surroundings.folder)


KIND = TransformersSettings


class TransformersGenerator(StatelessGenerator):
    """A generator that writes with the library transformers. It loads the model's folder at the first request.

    It counts the prompts that are too long for the model.
    """

    def __init__(
        self, settings: TransformersSettings, *, folder: Path, loaded: tuple[Any, Any, torch.device] | None = None
    ) -> None:
        """Checks that the folder is there.

        Args:
            settings: the task's table.
            folder: where a relative path starts.
            loaded: model, tokenizer and device, if the model in memory is no longer the folder's (fine-tuned).

        Raises:
            ConfigurationError: no such folder, or it holds no model.
        """
        self.name = settings.name
        self._settings = settings
        self._path = folder / settings.path
        check_language_model(self._path, f"generator {self.name}")
        self.counts = {"prompts_too_long": 0}
        self._loaded = loaded
        self._together: int | None = None  # prompts in a batch, once the folder's model has been tried
        self._adapter: Any = None  # peft's model with the adapter
        self._waiting: Mapping[str, bytes] | None = None  # an adapter's files that are not in the model yet

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields answers batch by batch; prompts of similar length share a batch.

        Raises:
            ConfigurationError: the folder cannot be loaded, the device is not there or its memory is too small.
        """
        if not requests:
            return
        model = self._load_model()[0]
        with self._named_errors():
            prompts = [self._prompt_ids(request) for request in requests]
        if self._together is None:
            self._together = self._find_batch_size()
        fitting_indices = []
        for request_index, token_ids in enumerate(prompts):
            missing_room = _missing_room(
                model, len(token_ids), self._settings.max_new_tokens * requests[request_index].room
            )
            if missing_room is not None:
                yield request_index, self._too_long(len(token_ids), missing_room)
            else:
                fitting_indices.append(request_index)
        fitting_indices.sort(
            key=lambda request_index: (requests[request_index].room, len(prompts[request_index]), request_index)
        )
        for batch_start in range(0, len(fitting_indices), self._together):
            batch_indices = fitting_indices[batch_start : batch_start + self._together]
            longest_answers = [
                self._settings.max_new_tokens * requests[request_index].room for request_index in batch_indices
            ]
            with self._named_errors():
                batch_answers = self._answer_batch(
                    [prompts[request_index] for request_index in batch_indices],
                    [requests[request_index] for request_index in batch_indices],
                    longest_answers,
                )
            yield from zip(batch_indices, batch_answers, strict=True)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turns any error of a loaded folder's template, tokenizer or model into a ConfigurationError with its path."""
        try:
            yield
        except UndersongError:
            raise
        except Exception as error:  # noqa: BLE001 - a folder's template, tokenizer and model fail in any way
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ConfigurationError(
                f"generator {self.name}: {self._path} cannot write: {reason}", _REMEDY, code="model-fails"
            ) from None

    def _prompt_ids(self, request: GenerationRequest) -> list[int]:
        """Returns a prompt's token ids. Raises ConfigurationError for unknown ids, or if the last one ends texts."""
        model, tokenizer, _ = self._load_model()
        is_chat = request.style == "chat"
        ids = prompt_ids(tokenizer, request.prompt, system=request.system, chat=is_chat)
        embedding_rows = model.get_input_embeddings().weight.shape[0]
        problem = ""
        if not ids:
            problem = "its tokenizer makes no token of a prompt"
        elif max(ids) >= embedding_rows:
            problem = f"its tokenizer writes token {max(ids)}, and its model knows {embedding_rows} tokens"
        elif not (model.config.is_encoder_decoder or (is_chat and tokenizer.chat_template)):
            has_end_token = ids[-1] in end_ids(tokenizer, model) and not request.prompt.endswith(
                tokenizer.decode(ids[-1:])
            )
            problem = "its tokenizer appends an end token to prompts (add_eos_token), after which nothing follows"
            problem = problem if has_end_token else ""
        if problem:
            raise ConfigurationError(f"generator {self.name}: {self._path}: {problem}", _REMEDY, code="model-fails")
        return ids

    def _too_long(self, token_count: int, position_count: int) -> GenerationError:
        self.counts["prompts_too_long"] += 1
        return GenerationError(
            f"generator {self.name}: a prompt of {token_count} tokens leaves no room for max_new_tokens in a model of"
            f" {position_count}"
        )

    def _find_batch_size(self) -> int:
        """Returns the number of prompts in a batch: 1 if the texts of a batch differ from those written singly.

        A mixture of experts has 1 unchecked: it takes a batch's tokens together, and a short check may not show it.
        """
        model, tokenizer, _ = self._load_model()
        if self._settings.batch_size == 1 or has_experts(model.config.to_dict()):
            return 1
        with self._named_errors():
            prompts = [[int(i) for i in tokenizer(text)["input_ids"]] for text in _CHECKED_PROMPTS]
            requests = [GenerationRequest("", "", text, 0) for text in _CHECKED_PROMPTS]
            longest_answers = [min(_CHECKED_TOKENS, self._settings.max_new_tokens)] * len(prompts)
            batch_answers = self._answer_batch(prompts, requests, longest_answers, temperature=0.0)
            single_answers = [
                self._answer_batch([ids], [request], longest_answers[:1], temperature=0.0)[0]
                for ids, request in zip(prompts, requests, strict=True)
            ]
        if batch_answers == single_answers:
            return self._settings.batch_size
        return 1

    def _answer_batch(
        self,
        prompts: Sequence[list[int]],
        requests: Sequence[GenerationRequest],
        longest: Sequence[int],
        *,
        temperature: float | None = None,
    ) -> list[Completion]:
        """Writes one answer to each prompt; ``temperature`` takes the place of the settings'."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        model, tokenizer, device = self._load_model()
        temperature = self._settings.temperature if temperature is None else temperature
        pad_token = padding(tokenizer, model)
        end_tokens = end_ids(tokenizer, model)
        # A decoder continues at the right end of its prompt, so padding goes to the left. An encoder counts positions
        # from the left, so padding goes to the right.
        if model.config.is_encoder_decoder:
            padding_side: Literal["left", "right"] = "right"
        else:
            padding_side = "left"
        prompt_rows = torch.tensor(padded(prompts, pad_token, padding_side), device=device)
        mask = torch.tensor(padded([[1] * len(ids) for ids in prompts], 0, padding_side), device=device)
        prompt_width = prompt_rows.shape[1]
        streams = [torch.Generator(device=device).manual_seed(request.seed % 2**63) for request in requests]
        # The output begins with the prompt, or with the one token that starts a decoder.
        answer_start = 1 if model.config.is_encoder_decoder else prompt_width
        # Such models keep states from which single rows cannot be taken out.
        reads_whole_prompt = model.config.is_encoder_decoder or getattr(model, "_is_stateful", False)
        encoder_states = None
        open_row_numbers = list(range(len(prompts)))
        tokens_by_row: dict[int, list[int]] = {}
        while open_row_numbers:
            # The folder's own sampling settings (top_k, repetition penalty, ...) are ignored: the task's count.
            generation_config = GenerationConfig(
                do_sample=False,
                max_new_tokens=max(longest[i] for i in open_row_numbers) + prompt_width - prompt_rows.shape[1],
                pad_token_id=pad_token,
                eos_token_id=end_tokens or None,
                decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
                return_dict_in_generate=True,
            )
            limits = [(requests[i].stop, longest[i]) for i in open_row_numbers]
            stop_criteria = _stopping_criteria(
                tokenizer,
                limits,
                set(end_tokens),
                answer_start,
                unfinished_count=0 if reads_whole_prompt else len(open_row_numbers) // 2,
            )
            try:
                with (
                    torch.inference_mode(),
                    self._steer_layers(model, [requests[i].steering for i in open_row_numbers]),
                ):
                    generated_rows = model.generate(
                        input_ids=prompt_rows,
                        attention_mask=mask,
                        past_key_values=encoder_states,
                        generation_config=generation_config,
                        logits_processor=LogitsProcessorList(
                            self._sampling_steps([streams[i] for i in open_row_numbers], device, temperature)
                        ),
                        use_model_defaults=False,
                        stopping_criteria=[stop_criteria],
                    )
            except torch.OutOfMemoryError:
                raise ConfigurationError(
                    f"generator {self.name}: {len(prompts)} prompts at once do not fit into the memory of {device}",
                    "lower its batch_size or max_new_tokens",
                ) from None
            prompt_rows = generated_rows.sequences
            encoder_states = generated_rows.past_key_values
            tokens_by_row.update(zip(open_row_numbers, prompt_rows[:, answer_start:].tolist(), strict=True))
            # Rows that have ended are taken out, or the batch would compute them until its longest row ends.
            open_rows = torch.tensor([n for n, ended in enumerate(stop_criteria.ended) if not ended], device=device)
            open_row_numbers = [open_row_numbers[n] for n in open_rows.tolist()]
            if open_row_numbers:
                mask = torch.nn.functional.pad(mask, (0, prompt_rows.shape[1] - mask.shape[1]), value=1)[open_rows]
                prompt_rows = prompt_rows[open_rows]
                encoder_states.batch_select_indices(open_rows)
        return [
            self._decode_answer(
                tokenizer, tokens_by_row[i][: longest[i]], set(end_tokens), prompts[i], requests[i].stop
            )
            for i in range(len(prompts))
        ]

    @contextmanager
    def _steer_layers(self, model: Any, vectors: Sequence[tuple[float, ...]]) -> Iterator[None]:
        """Adds, meanwhile, each row's vector to a layer's states at the prompt's last token and at all written ones."""
        if not any(vectors):
            yield
            return
        import torch

        axes = Axes.read(self._path)
        no_steering = (0.0,) * len(axes.back)
        steering_rows = torch.from_numpy(
            np.array([vector or no_steering for vector in vectors], dtype=np.float32) @ axes.back
        )

        def add(_module: Any, _given: Any, result: Any) -> None:
            layer_states = result[0] if isinstance(result, tuple) else result
            layer_states[:, -1] += steering_rows.to(layer_states)

        hook_handle = model.get_decoder().layers[axes.layer - 1].register_forward_hook(add)
        try:
            yield
        finally:
            hook_handle.remove()

    def _decode_answer(
        self, tokenizer: Any, tokens: list[int], end_tokens: set[int], prompt: list[int], stop: Sequence[str]
    ) -> Completion:
        end_position = next((position for position, token in enumerate(tokens) if token in end_tokens), None)
        tokens = tokens if end_position is None else tokens[:end_position]
        length = len(tokens) + (end_position is not None)
        if stop:
            lengths = range(1, len(tokens) + 1)
        else:
            lengths = range(0)
        first_stop = bisect_left(lengths, True, key=lambda n: _has_stopped(tokenizer, tokens[:n], stop))
        stop_length = None
        if first_stop < len(lengths):
            stop_length = lengths[first_stop]
        text = text_after_thinking(tokenizer, prompt, tokens[:stop_length])
        return Completion(
            text, len(prompt), stop_length or length, finish="length" if end_position is stop_length is None else ""
        )

    def _sampling_steps(
        self, streams: Sequence[torch.Generator], device: torch.device, temperature: float
    ) -> list[Any]:
        import torch
        from transformers import LogitsProcessor, TemperatureLogitsWarper

        class Finite(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped
            """Raises ValueError for logits from which no token can be drawn."""

            def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
                if not bool(torch.isfinite(scores.amax(-1)).all()):
                    raise ValueError("its logits are not finite")
                return scores

        if temperature == 0:
            return [Finite()]

        nucleus = self._settings.top_p

        class Drawn(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped
            """Draws one token a row from the nucleus, by the row's own random stream; all others become impossible.

            A token is drawn from the whole vocabulary until one lies in the nucleus: sorting a large vocabulary would
            take longer than the model does.
            """

            def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
                chances = scores.float().softmax(-1)
                # The sum of many small chances needs more digits than float32 has; Apple's GPUs have no float64.
                cumulative_chances = chances.cumsum(-1, dtype=torch.float32 if device.type == "mps" else torch.float64)
                drawn_tokens = torch.zeros_like(input_ids[:, :1])
                rows = torch.arange(len(scores), device=device)
                while len(rows):
                    points = torch.stack(
                        [torch.rand(1, generator=streams[row], device=device) for row in rows.tolist()]
                    )
                    row_sums = cumulative_chances[rows]
                    tokens = torch.searchsorted(row_sums, points * row_sums[:, -1:], right=True)
                    drawn_tokens[rows] = tokens.clamp_(max=scores.shape[-1] - 1)
                    row_chances = chances[rows]
                    likelier = row_chances.where(row_chances > row_chances.gather(-1, drawn_tokens[rows]), 0.0).sum(-1)
                    if nucleus < 1.0:
                        rows = rows[likelier >= nucleus]
                    else:
                        rows = rows[:0]
                return torch.full_like(scores, -torch.inf).scatter_(-1, drawn_tokens, 0.0)

        return [Finite(), TemperatureLogitsWarper(float(temperature)), Drawn()]

    def tune(
        self, preferences: Sequence[Preference], settings: Tuning, report: Callable[[int], None]
    ) -> Mapping[str, bytes]:
        """Trains by DPO, as the interface says. Raises ConfigurationError if the model is not causal or too large."""
        import torch

        from undersong_server.generators import tuning

        model, tokenizer, device = self._load_model()
        end_tokens = end_ids(tokenizer, model)
        pairs = [
            tuning.Pair(
                prompt_ids(tokenizer, preference.request.prompt, system=preference.request.system, chat=chat),
                *(
                    tuning.answer_ids(tokenizer, text, preference.request.stop, end_tokens)
                    for text in (preference.chosen, preference.rejected)
                ),
            )
            for preference in preferences
            for chat in (preference.request.style == "chat",)
        ]
        self._adapter = self._adapter or tuning.with_adapter(model, settings)
        try:
            tuning.optimise(self._adapter, pairs, settings, device, report)
        except torch.OutOfMemoryError:
            raise ConfigurationError(
                f"generator {self.name}: the training of a pair of texts does not fit into the memory of {device}",
                "lower its max_new_tokens, or name a smaller model",
            ) from None
        return tuning.files_of(self._adapter)

    def adapt(self, files: Mapping[str, bytes]) -> None:
        """Keeps an adapter, which the model gets before it writes or is trained next."""
        self._waiting = files

    def _load_model(self) -> tuple[Any, Any, torch.device]:
        if self._loaded is None:
            settings = self._settings
            self._loaded = load(
                self._path,
                device=settings.device,
                dtype=settings.dtype,
                place=f"generator {self.name}",
                device_map=settings.device_map,
                quantization=settings.quantization,
                double_quantization=settings.double_quantization,
            )
        if self._waiting is not None:
            from undersong_server.generators import tuning

            self._adapter = tuning.with_files(self._loaded[0], self._waiting)
            self._waiting = None
        return self._loaded


def load(
    path: Path,
    *,
    device: str,
    dtype: str,
    place: str,
    device_map: str | dict[str, int | str] = "",
    quantization: str = "",
    double_quantization: bool = False,
) -> tuple[Any, Any, torch.device]:
    """Loads the folder's model in evaluation mode. Returns it, its tokenizer and the device that it reads prompts on.

    Args:
        path: folder as ``save_pretrained`` writes it.
        device: "auto" is the first GPU if there is one.
        dtype: "auto" is the folder's own on a GPU and float32 on a CPU.
        place: first words of every error: the part of the task that asks for the model.
        device_map, quantization, double_quantization: as in TransformersSettings.

    Raises:
        ConfigurationError: the folder cannot be loaded, the device is not there, or a package is missing.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(f"{place}: there is no GPU for device {device!r}", 'use "cpu"', code="no-gpu")
    _check_packages(place, device_map, quantization)
    torch_device = torch.device(device)
    if dtype == "auto" and torch_device.type == "cpu":
        dtype = "float32"  # half precision is slow on most processors
    try:
        # Weights that are pickles are never loaded: reading a pickle runs the code in it.
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
        # Any other model is loaded whole and moved to its device; one that is in fewer bits already cannot be moved.
        is_placed = bool(device_map or quantization or hasattr(config, "quantization_config"))
        if is_placed:
            options["device_map"] = device_map or {"": torch_device}
        if quantization:
            options["quantization_config"] = _fewer_bits(quantization, double_quantization, dtype)
        model, loading_info = model_class.from_pretrained(path, dtype=dtype, output_loading_info=True, **options)
        if absent := sorted({*loading_info["missing_keys"], *(str(key) for key in loading_info["mismatched_keys"])}):
            raise ValueError(f"its weights lack {len(absent)} of the model's, such as {absent[0]}")
        model = (model if is_placed else model.to(torch_device)).eval()
    except Exception as error:  # noqa: BLE001 - a broken folder makes the library fail in any way
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(
            f"{place}: {path} cannot be loaded on {torch_device}: {reason}",
            _REMEDY,
            code="model-unloadable",
        ) from None
    return model, tokenizer, model.get_input_embeddings().weight.device if is_placed else torch_device


def _check_packages(place: str, device_map: object, quantization: str) -> None:
    packages = {"accelerate": bool(device_map or quantization), "bitsandbytes": bool(quantization)}
    for package, is_needed in packages.items():
        if is_needed and importlib.util.find_spec(package) is None:
            if package == "bitsandbytes" or not device_map:
                key = "quantization"
            else:
                key = "device_map"
            raise ConfigurationError(
                f"{place}: {key} needs the package {package}, which is not installed",
                f"pip install 'undersong[large-models]', or leave out {key}",
                code="package-missing",
            )


def _fewer_bits(quantization: str, double_quantization: bool, dtype: str) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization,
        bnb_4bit_use_double_quant=double_quantization,
        bnb_4bit_compute_dtype=torch.bfloat16 if dtype == "auto" else getattr(torch, dtype),
    )


def prompt_ids(tokenizer: Any, prompt: str, *, system: str = "", chat: bool = True) -> list[int]:
    """Returns the ids of the tokens that a model reads for a prompt.

    Args:
        system: how the model is to behave; a template that knows no such role gets it at the head of the prompt.
        chat: True makes the prompt a user's turn if the tokenizer has a chat template; False has the model continue it.
    """
    is_templated = chat and bool(tokenizer.chat_template)
    text = f"{system}\n\n{prompt}" if system else prompt
    if is_templated:
        from jinja2 import TemplateError

        template = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
        turns = [{"role": "system", "content": system}] if system else []
        try:
            text = template([*turns, {"role": "user", "content": prompt}])
        except TemplateError:  # such as Gemma's, which raises for a system's turn
            text = template([{"role": "user", "content": text}])
    ids = tokenizer(text, add_special_tokens=not is_templated)[
        "input_ids"
    ]  # a chat template writes the special tokens itself
    return [int(token) for token in ids]


def _has_stopped(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """Returns True if the text of the tokens has one of the stops after its leading line breaks."""
    text = _decode_tokens(tokenizer, tokens).lstrip()
    return any(mark in text for mark in stop)


def _stopping_criteria(
    tokenizer: Any,
    limits: Sequence[tuple[Sequence[str], int]],
    end_tokens: set[int],
    answer_start: int,
    unfinished_count: int,
) -> Any:
    """Returns the criteria by which a row ends: an end token, one of its request's stops, or its longest length.

    Args:
        limits: per row its request's stops and its longest answer in tokens.
        end_tokens: tokens that end a text.
        answer_start: position of a row's first written token.
        unfinished_count: all rows stop when at most so many have not ended; the attribute ``ended`` says which have.
    """
    import torch
    from transformers import StoppingCriteria

    class Stops(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped
        ended: Sequence[bool] = ()

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            self.ended = [
                bool(
                    len(row) >= longest
                    or not end_tokens.isdisjoint(row)
                    or (stops and _has_stopped(tokenizer, row, stops))
                )
                for row, (stops, longest) in zip(input_ids[:, answer_start:].tolist(), limits, strict=True)
            ]
            has_ended_enough = self.ended.count(False) <= unfinished_count
            return torch.tensor([has_ended or has_ended_enough for has_ended in self.ended], device=input_ids.device)

    return Stops()


def _decode_tokens(tokenizer: Any, ids: Sequence[int], *, specials: bool = False) -> str:
    """Returns the text of tokens with all its spaces; a clean-up would remove those before French question marks."""
    text: str = tokenizer.decode(ids, skip_special_tokens=not specials, clean_up_tokenization_spaces=False)
    return text


def text_after_thinking(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Returns the text of an answer without the thinking that the folder's special tokens and template mark."""
    full_text = _decode_tokens(tokenizer, tokens, specials=True)
    marks = template_marks(tokenizer)
    prompt_end = _decode_tokens(tokenizer, prompt[-16:], specials=True)
    # A template may open the thinking at the end of the prompt.
    opening_mark = next(
        (match[0] for opening, _ in marks if (match := re.search(rf"(?:{opening})\s*\Z", prompt_end))), ""
    )
    text = without_thinking(opening_mark + full_text, (*THINKING_MARKS, *marks))
    if text == opening_mark + full_text:
        return _decode_tokens(tokenizer, tokens)
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "")
    return text


def template_marks(tokenizer: Any) -> tuple[tuple[str, str], ...]:
    """Returns the marks that a chat template puts around a turn's thinking, as regular expressions."""
    marks = {}
    for name in _THOUGHT_FIELDS:
        turn = _rendered_turn(tokenizer, **{name: _PROBE_THOUGHT})
        if match := re.search(rf"(\S*)\s*{_PROBE_THOUGHT}\s*(\S.*?)\s*{_PROBE_TURN}", turn, re.DOTALL):
            # The mark that begins the turn may stand before this one.
            opening = re.findall(r"<[^<>]*>|\[[^\[\]]*\]|[^<>\[\]]+", match[1])[-1:]
            if opening:
                marks[match[2]] = re.escape(opening[0])
            else:
                marks[match[2]] = r"(?!)"
    return tuple((opening, re.escape(closing)) for closing, opening in marks.items())


def _rendered_turn(tokenizer: Any, **fields: str) -> str:
    """Returns a chat of two turns as its template writes it; "" without a template, or if it refuses such a chat."""
    if not tokenizer.chat_template:
        return ""
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": _PROBE_TURN, **fields}]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception:  # noqa: BLE001 - a template fails in any way; its prompts show whether it serves
        return ""


def end_ids(tokenizer: Any, model: Any) -> list[int]:
    """Returns the ids of the tokens that end a turn, by generation settings, tokenizer and chat template; often one."""
    end_tokens: list[int] = []
    for stated_ids in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        if isinstance(stated_ids, int):
            end_tokens += [stated_ids]
        else:
            end_tokens += list(stated_ids or ())
    after_turn = _rendered_turn(tokenizer).rpartition(_PROBE_TURN)[2].lstrip()
    if after_turn and (first := tokenizer(after_turn, add_special_tokens=False)["input_ids"][:1]):
        end_tokens += [token for token in first if token in tokenizer.added_tokens_decoder]
    return list(dict.fromkeys(map(int, end_tokens)))


def padding(tokenizer: Any, model: Any) -> int:
    """Returns the id of a token to pad with; padding is masked out, so any token that the model has serves."""
    vocabulary_size = model.get_input_embeddings().weight.shape[0]
    possible_tokens = (tokenizer.pad_token_id, tokenizer.eos_token_id, model.config.eos_token_id)
    return next((token for token in possible_tokens if isinstance(token, int) and 0 <= token < vocabulary_size), 0)


def padded(rows: Sequence[list[int]], pad_token: int, side: Literal["left", "right"]) -> list[list[int]]:
    """Returns the rows with ``pad_token`` on one side, so that all have the same length.

    >>> padded([[1], [2, 3]], 0, "left"), padded([[1], [2, 3]], 0, "right")
    ([[0, 1], [2, 3]], [[1, 0], [2, 3]])
    """
    width = max(map(len, rows))
    return [
        row + [pad_token] * (width - len(row)) if side == "right" else [pad_token] * (width - len(row)) + row
        for row in rows
    ]


def _missing_room(model: Any, prompt_length: int, longest_answer: int) -> int | None:
    """Returns the number of the model's positions if a prompt and its answer do not fit into them; None if they do.

    A model without absolute positions, such as T5, reads as much as memory holds.
    """
    position_count: int | None = getattr(model.config, "max_position_embeddings", None)
    if position_count is None:
        return None
    if model.config.is_encoder_decoder:
        needed_position_count = max(prompt_length, longest_answer)
    else:
        needed_position_count = prompt_length + longest_answer
    if needed_position_count > position_count:
        return position_count
    return None


# The code below has the workers of a Ray cluster write the answers: each loads the model's folder once, on a GPU if it
# has one. A part of the requests whose worker was lost is asked once more, and its answers reach the author, who
# journals and counts them, once. Training stays at the coordinator, which gives its adapter to the workers.


def spread(settings: GeneratorSettings, generator: Generator, folder: Path, cluster: Cluster | None) -> Generator:
    """Returns ``generator``, or one that runs its model on ``cluster`` if there is one and the model lies in a folder.

    Args:
        folder: folder in which relative paths start, the same at every machine of the cluster.
    """
    if cluster is None or not isinstance(settings, TransformersSettings):
        return generator
    kind = SpreadTunable if isinstance(generator, TunableGenerator) else SpreadGenerator
    return kind(settings, generator, folder.absolute(), cluster)


class SpreadGenerator(StatelessGenerator):
    """A generator that sends its requests in parts to the workers of a cluster. Arguments as in :func:`spread`."""

    def __init__(self, settings: TransformersSettings, generator: Generator, folder: Path, cluster: Cluster) -> None:
        self.name = settings.name
        self._settings = settings
        self._here = generator
        self._folder = folder
        self._cluster = cluster
        # One object for all parts of an answer: Cluster.each sends an argument that several calls share only once.
        self._adapter: Mapping[str, bytes] = {}
        self._failed_count = 0

    @property
    def counts(self) -> dict[str, int]:
        return {**self._here.counts, "prompts_too_long": self._failed_count}

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields answers as the interface says, part by part.

        Raises:
            ConfigurationError: no cluster, or one of its machines, which the error names, cannot load the model.
            UndersongError: the worker of a part of the requests was lost twice. What was yielded before stays valid.
        """
        part_size = self._settings.together
        parts = [range(start, min(start + part_size, len(requests))) for start in range(0, len(requests), part_size)]
        shared_arguments = self._settings, self._folder, self._adapter
        calls = [(*shared_arguments, tuple(requests[request_index] for request_index in part)) for part in parts]
        for part_number, answers in self._cluster.each(answer_part, calls, gpus=self._settings.gpus):
            if isinstance(answers, UndersongError):
                raise answers
            for request_index, answer in zip(parts[part_number], answers, strict=True):
                self._failed_count += isinstance(answer, GenerationError)
                yield request_index, answer


class SpreadTunable(SpreadGenerator):
    """A generator whose model is trained in this process and writes in the workers of a cluster."""

    _here: TunableGenerator

    def tune(
        self, preferences: Sequence[Preference], settings: Tuning, report: Callable[[int], None]
    ) -> Mapping[str, bytes]:
        """Trains the model of this process, as the interface says; the workers write with the new adapter."""
        self._adapter = self._here.tune(preferences, settings, report)
        return self._adapter

    def adapt(self, files: Mapping[str, bytes]) -> None:
        """Gives an adapter to the workers, and to the model here, whose further training goes on from it."""
        self._here.adapt(files)
        self._adapter = files


_loaded: dict[tuple[str, Path], tuple[Generator, Mapping[str, bytes]]] = {}  # this worker's models and their adapters


def answer_part(
    settings: TransformersSettings, folder: Path, adapter: Mapping[str, bytes], requests: Sequence[GenerationRequest]
) -> list[Completion | GenerationError] | UndersongError:
    """Answers requests in a worker; returns an error with the reason if this machine cannot load the model."""
    model_key = settings.model_dump_json(), folder
    try:
        generator, loaded_adapter = _loaded.get(model_key) or (
            settings.build(Surroundings((), folder, embeds_nothing, {})),
            {},
        )
        if adapter != loaded_adapter and isinstance(generator, TunableGenerator):
            generator.adapt(adapter)
        _loaded[model_key] = generator, adapter
        answers = dict(generator.answer(requests))
    except UndersongError as error:
        return at_this_machine(error)
    return [answers[index] for index in range(len(requests))]
