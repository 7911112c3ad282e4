"""Generators of text behind one interface. ``build_generators`` makes them from settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from undersong_common.embedding import Embed
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators import other_packages
from undersong_server.generators.batches import Notes
from undersong_server.generators.interface import Answer, BudgetExhausted, Estimate, GenerationRequest, Generator
from undersong_server.generators.settings import (
    GeneratorSettings,
    NgramSettings,
    OpenAISettings,
    ReplaySettings,
    TransformersSettings,
    VllmSettings,
)

__all__ = [
    "Answer",
    "BudgetExhausted",
    "Estimate",
    "GenerationError",
    "GenerationRequest",
    "Generator",
    "GeneratorSettings",
    "NgramSettings",
    "OpenAISettings",
    "ReplaySettings",
    "TransformersSettings",
    "VllmSettings",
    "build_generators",
]


def build_generators(
    settings: Sequence[GeneratorSettings],
    *,
    labels: Sequence[str],
    folder: Path,
    embed: Embed,
    environment: Mapping[str, str],
    notes: Notes | None = None,
) -> list[Generator]:
    """Makes one generator a table of the task file, in its order.

    Args:
        settings: validated ``[[generators]]`` tables.
        labels: the task's labels; empty where it has none.
        folder: where relative paths start, i.e. the task file's folder.
        embed: texts -> float32 [n, d] unit vectors; caches as it likes. Only ``replay`` calls it.
        environment: where ``api_key_env`` is looked up, e.g. ``os.environ``.
        notes: where the numbers of batches are kept, i.e. the run's journal; without it there are no batches.

    Raises:
        ConfigurationError: two generators of one name, a missing file, folder or key variable, an empty corpus. An
            unreachable endpoint shows at the first answer.
    """
    names = [one.name for one in settings]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"[[generators]]: the name {name!r} occurs twice", "give each generator its own")
    made: list[Generator] = []
    for one in settings:
        if isinstance(one, NgramSettings):
            from undersong_server.generators.ngram import NgramGenerator

            made.append(NgramGenerator(one, labels=labels, folder=folder))
        elif isinstance(one, ReplaySettings):
            from undersong_server.generators.replay import ReplayGenerator

            made.append(ReplayGenerator(one, labels=labels, folder=folder, embed=embed))
        elif isinstance(one, OpenAISettings):
            from undersong_server.generators.openai_compatible import OpenAIGenerator

            endpoint = OpenAIGenerator(one, environment=environment, folder=folder, notes=notes)
            if one.cache:
                from undersong_server.generators.cache import CachedGenerator

                made.append(CachedGenerator(endpoint, one, folder / one.cache))
            else:
                made.append(endpoint)
        elif isinstance(one, VllmSettings):
            from undersong_server.generators.offline_vllm import VllmGenerator

            made.append(VllmGenerator(one, folder=folder))
        elif isinstance(one, TransformersSettings):
            from undersong_server.generators.local_transformers import TransformersGenerator

            made.append(TransformersGenerator(one, folder=folder))
        else:
            around = other_packages.Surroundings(tuple(labels), folder, embed, environment)
            made.append(other_packages.build(one, around))
    return made
