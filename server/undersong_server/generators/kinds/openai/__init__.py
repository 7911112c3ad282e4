"""Any endpoint with OpenAI's chat or legacy completions: one prompt and one answer per call (never ``n`` > 1).

The module ``states`` alone judges the outcome of an attempt: of single calls, of lines of batches and of errors that
come with a good status.
"""

from undersong_server.generators.endpoints import CachedGenerator
from undersong_server.generators.interface import Generator, Surroundings
from undersong_server.generators.kinds.openai.generator import OpenAIGenerator
from undersong_server.generators.kinds.openai.settings import EndpointSettings

__all__ = ["KIND", "OpenAIGenerator", "OpenAISettings"]


class OpenAISettings(EndpointSettings):
    """Settings of an OpenAI-compatible endpoint. Its RequestFields hold for every kind of prompt not in ``kinds``."""

    def check(self, around: Surroundings) -> None:
        OpenAIGenerator(self, environment=around.environment, folder=around.folder)  # connects at the first request

    def build(self, around: Surroundings) -> Generator:
        generator = OpenAIGenerator(self, environment=around.environment, folder=around.folder, journal=around.journal)
        if self.cache:
            return CachedGenerator(generator, self.cache_parts, around.folder / self.cache)
        return generator


KIND = OpenAISettings
