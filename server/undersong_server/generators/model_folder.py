"""What generators have in common that write with a model in a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from undersong_common.errors import GenerationError
from undersong_common.model_files import check_language_model
from undersong_server.generators.interface import Answer, GenerationRequest


class ModelFolder:
    """A generator's name and folder, and the prompts that were too long for its model.

    Raises ConfigurationError as :func:`undersong_common.model_files.check_language_model`.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        check_language_model(path, f"generator {name}")
        self._prompts_too_long = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"prompts_too_long": self._prompts_too_long}

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Answer | GenerationError]) -> None:
        """Nothing to remember: an answer depends on its request only."""

    def _too_long(self, tokens: int, room: int) -> GenerationError:
        """Counts a prompt of so many tokens, for which a context of ``room`` has no place."""
        self._prompts_too_long += 1
        return GenerationError(f"{self.name}: a prompt of {tokens} tokens leaves no room for max_new_tokens in {room}")
