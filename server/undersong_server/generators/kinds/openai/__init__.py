"""Any endpoint with OpenAI's chat or legacy completions: one prompt and one answer per call (never ``n`` > 1).

What comes of an attempt is judged in one place (``states``): single calls, lines of batches and errors inside a good
status alike.
"""

from undersong_server.generators.kinds.openai.generator import OpenAIGenerator
from undersong_server.generators.kinds.openai.settings import OpenAISettings

__all__ = ["KIND", "OpenAIGenerator", "OpenAISettings"]

KIND = OpenAISettings
