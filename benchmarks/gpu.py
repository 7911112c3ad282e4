"""Checks in ten minutes whether all GPU features run on a machine with GPUs, how fast, and at what price.

    python -m benchmarks.gpu --model FOLDER [--texts 256] [--price-per-hour 2.0] [--device cpu]

The library transformers writes the texts; the same model writes them over Ray, one worker for each GPU (``--workers``
without one); a LoRA adapter is trained on preference pairs and writes; the folder's hidden states are computed, as
parties do for the method `vector`. Each line has seconds, tokens or texts a second and the largest GPU memory; the
last ones US dollars for 1 000 and 100 000 texts at the price of an hour. JSON with ``--json``. Without ``--model`` a
tiny Llama with random weights serves to try the script. Exit code 1 if a part fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from undersong_common.errors import UndersongError
from undersong_common.models import hidden_states
from undersong_server.cluster import Cluster
from undersong_server.generators.interface import (
    Completion,
    GenerationRequest,
    Generator,
    Preference,
    Surroundings,
    Tuning,
    embeds_nothing,
)
from undersong_server.generators.kinds import GeneratorTable
from undersong_server.generators.kinds.transformers import TransformersGenerator, spread

PROMPT = "A nurse's note on a patient with chest pain, number {number}:\n"
PAIRS = 32


def requests(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest("zero_shot", "", PROMPT.format(number=number), number, style="completion")
        for number in range(count)
    ]


def build_generator(kind: str, arguments: argparse.Namespace, **fields: Any) -> tuple[Any, Generator]:
    """Returns the settings of a generator of this kind, and the generator."""
    table = {
        "name": kind,
        "kind": kind,
        "path": str(arguments.model),
        "style": "completion",
        "max_new_tokens": arguments.tokens,
    }
    settings = TypeAdapter(GeneratorTable).validate_python({**table, **fields})
    return settings, settings.build(Surroundings((), Path(), embeds_nothing, {}))


def time_texts(generator: Generator, count: int) -> dict[str, Any]:
    """Returns figures of writing ``count`` texts. The first text is timed apart, because it loads the model."""
    start_s = time.perf_counter()
    list(generator.answer(requests(1)))
    loaded_s = time.perf_counter()
    answers = [answer for _, answer in generator.answer(requests(count)) if isinstance(answer, Completion)]
    seconds = time.perf_counter() - loaded_s
    tokens = sum(answer.completion_tokens for answer in answers)
    return {
        **{"texts": len(answers), "first_s": loaded_s - start_s, "seconds": seconds},
        **{"tokens_a_second": tokens / seconds, "seconds_a_text": seconds / max(1, len(answers))},
    }


def parts(arguments: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """Returns the functions that measure the parts, by name."""
    local_fields = {"device": arguments.device, "batch_size": arguments.batch}

    def by_transformers() -> dict[str, Any]:
        return time_texts(build_generator("transformers", arguments, **local_fields)[1], arguments.texts)

    def over_ray() -> dict[str, Any]:
        settings, local_generator = build_generator("transformers", arguments, **local_fields)
        with Cluster("local", max(arguments.workers, gpus())) as cluster:
            return time_texts(spread(settings, local_generator, Path(), cluster), arguments.texts)

    def tuning() -> dict[str, Any]:
        _, generator = build_generator("transformers", arguments, **local_fields)
        assert isinstance(generator, TransformersGenerator)
        pairs = [Preference(request, "He has had chest pain since Monday.", "Buy now!") for request in requests(PAIRS)]
        start_s = time.perf_counter()
        adapter_files = generator.tune(pairs, Tuning(8, 1e-4, 0.1, 1, 8, 0), lambda _: None)
        seconds = time.perf_counter() - start_s
        adapter_bytes = sum(map(len, adapter_files.values()))
        return {"pairs": PAIRS, "seconds": seconds, "adapter_bytes": adapter_bytes, **_after(generator)}

    def states() -> dict[str, Any]:
        texts = [
            f"{PROMPT.format(number=number)} She sleeps badly and eats little." for number in range(arguments.texts)
        ]
        start_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "prepared"
            hidden_states.prepare(
                arguments.model, folder, texts, layer=arguments.layer, size=min(8, arguments.texts - 1)
            )
        return {"texts": len(texts), "seconds": time.perf_counter() - start_s}

    return {
        "transformers": by_transformers,
        "transformers over Ray": over_ray,
        "tuning": tuning,
        "hidden states": states,
    }


def _after(generator: Generator) -> dict[str, Any]:
    return {"texts_after": sum(isinstance(answer, Completion) for _, answer in generator.answer(requests(8)))}


def gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def measure_part(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs a part; returns its figures with the largest GPU memory meanwhile, or why it failed."""
    import torch

    if gpus():
        torch.cuda.reset_peak_memory_stats()
    try:
        figures = part()
    except UndersongError as error:
        return {"failed": f"{error.problem}; {error.remedy}"}
    return {**figures, "gpu_bytes": torch.cuda.max_memory_allocated() if gpus() else 0}


def prices(figures_by_part: dict[str, dict[str, Any]], per_hour: float) -> dict[str, dict[str, float]]:
    """Returns the price in US dollars of 1 000 and of 100 000 texts, by the part that wrote them."""
    dollars_a_text = {
        name: row["seconds_a_text"] * per_hour / 3600
        for name, row in figures_by_part.items()
        if "seconds_a_text" in row
    }
    return {name: {"1000": 1e3 * dollars, "100000": 1e5 * dollars} for name, dollars in dollars_a_text.items()}


def main() -> int:
    """Prints the figures; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a causal model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=60, help="longest answer")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--layer", type=int, default=1, help="whose states are computed")
    parser.add_argument("--workers", type=int, default=2, help="of Ray, where there is no GPU")
    parser.add_argument("--price-per-hour", type=float, default=2.0, help="US dollars of this machine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            from tests.doubles.tiny_llama import save_tiny_llama

            arguments.model = Path(folder) / "tiny"
            save_tiny_llama(arguments.model)
        arguments.model = arguments.model.absolute()
        figures_by_part: dict[str, dict[str, Any]] = {}
        for name, part in parts(arguments).items():
            figures_by_part[name] = measure_part(part)
            if not arguments.json:
                row = {
                    key: round(value, 3) if isinstance(value, float) else value
                    for key, value in figures_by_part[name].items()
                }
                print(f"{name}: {row}", flush=True)
    dollars_by_part = prices(figures_by_part, arguments.price_per_hour)
    if arguments.json:
        print(json.dumps({"gpus": gpus(), "parts": figures_by_part, "usd": dollars_by_part}))
    for name, dollars in {} if arguments.json else dollars_by_part.items():
        print(f"{name}: {dollars['1000']:.4f} USD for 1 000 texts, {dollars['100000']:.2f} for 100 000")
    return int(any("failed" in row for row in figures_by_part.values()))


if __name__ == "__main__":
    sys.exit(main())
