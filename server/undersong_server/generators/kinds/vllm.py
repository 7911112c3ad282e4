"""A causal language model in a local folder, written with by vLLM's offline engine: many answers at once, on a GPU.

Each request has its own seed, so that its answer does not depend on the requests it shares a batch with (but for
rounding). Nothing is downloaded and no code of the folder runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.extras import named, require
from undersong_server.generators.interface import Answer, Estimate, GenerationRequest, Surroundings
from undersong_server.generators.kinds.openai.states import finish_of
from undersong_server.generators.kinds.transformers import FolderGenerator, ModelFolderSettings, prompt_ids

_TOGETHER = 256  # requests that the engine is given at once: so many answers an interruption may lose


class VllmSettings(ModelFolderSettings):
    """Settings of a causal model that vLLM's offline engine runs (the extra ``vllm``).

    Attributes:
        context_tokens: prompt and answer together; None takes the model's own.
        memory: share of the GPU's memory that the engine takes.
        tensor_parallel: GPUs over which the model is divided.
        quantization: as vLLM names it, e.g. "bitsandbytes"; "" takes the folder's own.
        eager: compiles nothing: the engine starts in seconds and writes more slowly.
    """

    kind: Literal["vllm"]
    context_tokens: int | None = Field(default=None, ge=256)
    memory: float = Field(default=0.9, gt=0.0, le=1.0)
    tensor_parallel: int = Field(default=1, ge=1)
    quantization: str = Field(default="", pattern=r"^[a-z0-9_-]*$")
    eager: bool = False

    @property
    def together(self) -> int:
        return _TOGETHER

    @property
    def packages(self) -> tuple[str, ...]:
        return ("vllm",)

    @property
    def gpus(self) -> int:
        return self.tensor_parallel

    def context(self, folder: Path) -> int | None:
        return self.context_tokens or super().context(folder)

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Assumes a hundred answers at once, at 20 to 100 tokens a second each, after a minute of loading."""
        free = self.free(calls, prompt_words, answer_words, 100, (100.0, 20.0))
        return replace(free, seconds=(30.0 + free.seconds[0], 180.0 + free.seconds[1]))

    def build(self, around: Surroundings) -> "VllmGenerator":
        return VllmGenerator(self, folder=around.folder)


KIND = VllmSettings


class VllmGenerator(FolderGenerator[VllmSettings]):
    """A generator that writes with vLLM. It starts the engine at the first request, so a resumed run may start none."""

    def __init__(self, settings: VllmSettings, *, folder: Path) -> None:
        """Raises ConfigurationError if the folder holds no model, or vLLM is not installed."""
        super().__init__(settings, folder)
        with named(f"generator {self.name}", 'use kind = "transformers"'):
            require("vllm")
        self._engine: Any = None

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Answer | GenerationError]]:
        """Yields answers as the interface says, batch by batch.

        Raises:
            ConfigurationError: the engine cannot be started.
        """
        if not requests:
            return
        engine = self._started()
        tokenizer = engine.get_tokenizer()
        room = engine.llm_engine.model_config.max_model_len
        for start in range(0, len(requests), _TOGETHER):
            fitting, prompts, samplings = [], [], []
            for index in range(start, min(start + _TOGETHER, len(requests))):
                request = requests[index]
                ids = prompt_ids(tokenizer, request.prompt, system=request.system, chat=request.style == "chat")
                longest = self._settings.max_new_tokens * request.room
                if len(ids) + longest > room:
                    yield index, self._too_long(len(ids), room)
                    continue
                fitting.append(index)
                prompts.append({"prompt_token_ids": ids})
                samplings.append(self._sampling(request, longest))
            if not fitting:
                continue
            for index, output in zip(fitting, engine.generate(prompts, samplings, use_tqdm=False), strict=True):
                written = output.outputs[0]
                finish = finish_of(written.finish_reason)
                if finish is None:
                    yield (
                        index,
                        GenerationError(f"generator {self.name}: the engine ended it ({written.finish_reason})"),
                    )
                    continue
                yield index, Answer(written.text, len(output.prompt_token_ids), len(written.token_ids), finish=finish)

    def _sampling(self, request: GenerationRequest, longest: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=self._settings.temperature,
            top_p=self._settings.top_p,
            max_tokens=longest,
            seed=request.seed % 2**31,
            stop=list(request.stop) or None,
        )

    def _started(self) -> Any:
        if self._engine is None:
            from vllm import LLM

            settings = self._settings
            try:
                self._engine = LLM(
                    model=str(self._path),
                    trust_remote_code=False,
                    max_model_len=settings.context_tokens,
                    gpu_memory_utilization=settings.memory,
                    tensor_parallel_size=settings.tensor_parallel,
                    quantization=settings.quantization or None,
                    enforce_eager=settings.eager,
                    generation_config="vllm",  # the task's settings count, not the folder's
                )
            except Exception as error:  # noqa: BLE001 - a broken folder or a small GPU makes the engine fail in any way
                raise ConfigurationError(
                    f"generator {self.name}: vLLM cannot start with {self._path}: {' '.join(str(error).split())[:300]}",
                    "lower memory or context_tokens, or name a complete folder of a causal language model",
                    code="model-unloadable",
                ) from None
        return self._engine
