"""Local models whose answers the workers of a Ray cluster write: one model in each worker, on a GPU where there is one.

A worker loads the model's folder once. A part whose worker was lost is asked once more, and its answers reach the
author, who journals and counts them, once. Training stays at the coordinator; the workers write with what it gives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from undersong_common.arrays import Float32
from undersong_common.errors import GenerationError, InternalError, UndersongError
from undersong_server.cluster import Cluster, at_this_machine
from undersong_server.generators.interface import (
    Answer,
    GenerationRequest,
    Generator,
    GeneratorSettings,
    Independent,
    Preference,
    Surroundings,
    TunableGenerator,
)
from undersong_server.generators.kinds.transformers import ModelFolderSettings
from undersong_server.generators.tuning import Tuning


def spread(settings: GeneratorSettings, here: Generator, folder: Path, cluster: Cluster | None) -> Generator:
    """Returns ``here``; if it runs a model of a local folder, a generator that runs that model on ``cluster``.

    Args:
        folder: folder in which relative paths start, the same at every machine of the cluster.
    """
    if cluster is None or not isinstance(settings, ModelFolderSettings):
        return here
    made = SpreadTunable if isinstance(here, TunableGenerator) else SpreadGenerator
    return made(settings, here, folder.absolute(), cluster)


class SpreadGenerator(Independent):
    """A generator that sends its requests in parts to the workers of a cluster. Arguments as of :func:`spread`."""

    def __init__(self, settings: ModelFolderSettings, here: Generator, folder: Path, cluster: Cluster) -> None:
        self.name = settings.name
        self._settings = settings
        self._here = here
        self._folder = folder
        self._cluster = cluster
        self._adapter: Mapping[str, bytes] = {}  # an argument of all parts is sent once
        self._failed = 0

    @property
    def counts(self) -> dict[str, int]:
        return {**self._here.counts, "prompts_too_long": self._failed}

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Answer | GenerationError]]:
        """Yields answers as the interface says, part by part.

        Raises:
            ConfigurationError: no cluster, or one of its machines, which the error names, cannot load the model.
            UndersongError: a part's worker was lost twice. What was yielded before stays valid.
        """
        size = self._settings.together
        parts = [range(start, min(start + size, len(requests))) for start in range(0, len(requests), size)]
        shared = self._settings, self._folder, self._adapter
        calls = [(*shared, tuple(requests[index] for index in part)) for part in parts]
        for number, answers in self._cluster.each(answer_part, calls, gpus=self._settings.gpus):
            if isinstance(answers, UndersongError):
                raise answers
            for index, answer in zip(parts[number], answers, strict=True):
                self._failed += isinstance(answer, GenerationError)
                yield index, answer


class SpreadTunable(SpreadGenerator):
    """A generator whose model is trained in this process and writes in the workers of a cluster."""

    _here: TunableGenerator

    def tune(
        self, preferences: Sequence[Preference], tuning: Tuning, told: Callable[[int], None]
    ) -> Mapping[str, bytes]:
        """Trains the model of this process, as the interface says; the workers write with the new adapter."""
        self._adapter = self._here.tune(preferences, tuning, told)
        return self._adapter

    def adapt(self, files: Mapping[str, bytes]) -> None:
        """Gives an adapter to the workers, and to the model here, whose further training goes on from it."""
        self._here.adapt(files)
        self._adapter = files


_loaded: dict[tuple[str, Path], tuple[Generator, Mapping[str, bytes]]] = {}  # this worker's models and their adapters


def answer_part(
    settings: ModelFolderSettings, folder: Path, adapter: Mapping[str, bytes], requests: Sequence[GenerationRequest]
) -> list[Answer | GenerationError] | UndersongError:
    """Answers requests in a worker; returns an error with the reason if this machine cannot load the model."""
    place = settings.model_dump_json(), folder
    try:
        generator, known = _loaded.get(place) or (settings.build(Surroundings((), folder, embeds_nothing, {})), {})
        if adapter != known and isinstance(generator, TunableGenerator):
            generator.adapt(adapter)
        _loaded[place] = generator, adapter
        found = dict(generator.answer(requests))
    except UndersongError as error:
        return at_this_machine(error)
    return [found[index] for index in range(len(requests))]


def embeds_nothing(texts: Sequence[str]) -> Float32:
    """Stands for the embedder where only local models are built, which embed nothing: raises InternalError."""
    raise InternalError("a local model embeds nothing")
