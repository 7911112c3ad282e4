"""A Python function of this process as a generator, for tasks that a notebook makes (``us.Task.from_frame``)."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_protocol.agreement.words import OF_THIS_PROCESS
from undersong_server.generators.interface import (
    Completion,
    Estimate,
    GenerationRequest,
    LanguageModelSettings,
    PromptFormat,
    StatelessGenerator,
    Surroundings,
)

# Functions by name. A task file can only name a function that this process has put here.
FUNCTIONS: dict[str, Callable[[str], str]] = {}


class FunctionSettings(LanguageModelSettings):
    """Settings of a function that takes a prompt and returns a text.

    Attributes:
        function: its key in ``FUNCTIONS``.
        style: "chat" gives it an instruction, "completion" the beginning of a text.
    """

    kind: Literal["function"]
    function: str
    style: Literal["chat", "completion"] = "chat"

    @property
    def writer(self) -> str:
        return f"the function {self.function} {OF_THIS_PROCESS}"

    def prompt_format(self, folder: Path) -> PromptFormat:
        return PromptFormat(style=self.style)

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Estimates the number of calls alone: the cost of the function is known to its author only."""
        return Estimate(calls, (0, 0), (0.0, 0.0), (0.0, 0.0))

    def check(self, around: Surroundings) -> None:
        self.build(around)

    def build(self, around: Surroundings) -> "FunctionGenerator":
        if self.function not in FUNCTIONS:
            raise ConfigurationError(
                f"generator {self.name}: this process has no function {self.function!r}",
                "make the task anew with the function, in the process that runs it",
            )
        return FunctionGenerator(self.name, FUNCTIONS[self.function])


KIND = FunctionSettings


class FunctionGenerator(StatelessGenerator):
    """Asks a function for one text after the other, its system prompt before its prompt."""

    def __init__(self, name: str, function: Callable[[str], str]) -> None:
        self.name = name
        self.counts: dict[str, int] = {}
        self._function = function

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields one answer a request by calling the function.

        Raises ConfigurationError, with the function's own error as its cause, if it fails or returns no text.
        """
        for number, request in enumerate(requests):
            begun_s = time.monotonic()
            try:
                text = self._function("\n\n".join(part for part in (request.system, request.prompt) if part))
            except Exception as error:
                raise ConfigurationError(
                    f"generator {self.name}: the function failed: {type(error).__name__}: {error}",
                    "correct it and run the same again; what it has written is kept",
                ) from error
            if not isinstance(text, str):
                raise ConfigurationError(
                    f"generator {self.name}: the function returned {type(text).__name__}, not a text",
                    "return the text that it wrote, as str",
                )
            yield number, Completion(text, seconds=time.monotonic() - begun_s)
