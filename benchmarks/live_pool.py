"""The generators of ``benchmarks.live``: one model at several settings, and n-gram models as weak members of the pool.

The settings are temperatures, and prefixes of different quality before every prompt (the system part of a chat): one
says what is wanted, one misleads. The n-gram models are those of the task file; if it has none, they
are trained on texts that the model wrote zero-shot, which are public as all of its texts are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undersong_server.generators.kinds.ngram import NgramSettings
from undersong_server.runs.task import Task

TEMPERATURES = (0.7, 1.0, 1.3)
PREFIXES = {
    "helped": "Every text below was written by a real person, in a few plain words. It says one thing, and nobody"
    " could take it for a text of another category.",
    "misled": "Peel the onions, cut them into thin rings and fry them in butter until they are golden. Add the"
    " tomatoes, a pinch of salt and a bay leaf, cover the pan and let everything simmer for twenty minutes.",
}
# At the lowest priority a batch takes over ten minutes, and a request that times out has computed for nothing.
LONGEST_ANSWER_S = 4 * 3600.0
POOLS = ("one", "temperatures", "mixed")

Generator = dict[str, Any]
"""A ``[[generators]]`` table."""


def endpoint(arguments: argparse.Namespace, temperature: float = 1.0, name: str = "live", **more: Any) -> Generator:
    """Returns the task file's table of the model at one temperature."""
    if arguments.folder:
        return {
            **{
                "name": name,
                "kind": "transformers",
                "path": str(arguments.folder.absolute()),
                "dtype": arguments.dtype,
            },
            **{
                "style": "chat" if arguments.chat else "completion",
                "temperature": temperature,
                "top_p": arguments.top_p,
            },
            **{"max_new_tokens": arguments.max_tokens, "batch_size": arguments.concurrency},
            **more,
        }
    return {
        **{"name": name, "kind": "openai", "model": arguments.model, "base_url": arguments.url, "api_key_env": ""},
        **{
            "style": "chat" if arguments.chat else "completion",
            "temperature": temperature,
            "max_tokens": arguments.max_tokens,
        },
        **{"concurrency": arguments.concurrency, "context_tokens": arguments.context},
        **{"timeout_s": LONGEST_ANSWER_S, "deadline_s": LONGEST_ANSWER_S},
        **({"cache": str(arguments.cache.absolute())} if arguments.cache else {}),
        **more,
    }


def temperature_tables(arguments: argparse.Namespace) -> list[Generator]:
    """Returns a table of the model for each temperature."""
    return [endpoint(arguments, temperature, f"live-{temperature:g}") for temperature in TEMPERATURES]


def prefix_tables(arguments: argparse.Namespace) -> list[Generator]:
    """Returns a table of the model for each prefix."""
    return [endpoint(arguments, name=f"live-{name}", system=text) for name, text in PREFIXES.items()]


def ngrams(task: Task, texts: Sequence[tuple[str, str]], written: Path) -> list[Generator]:
    """Returns the task's n-gram models, or two trained on ``texts`` (text, label), the second a worse one.

    Args:
        written: where the texts are put.
    """
    ngram_settings = [settings for settings in task.generators if isinstance(settings, NgramSettings)]
    if ngram_settings:
        return [
            settings.model_dump(mode="json") | {"corpus": [str(task.locate(path)) for path in settings.corpus]}
            for settings in ngram_settings
        ]
    lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in texts]
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ngram_fields = {"kind": "ngram", "corpus": [str(written.absolute())]}
    return [
        {"name": "ngram", **ngram_fields},
        {"name": "ngram-smeared", **ngram_fields, "order": 2, "temperature": 2.0, "shared": 0.5},
    ]


def with_generators(task_file: Path, tables: Sequence[Generator], *, variety: bool = True) -> str:
    """Returns the text of a task file with these generators in place of its own.

    Without ``variety`` prompts have no number, which a base model takes for a part of a list.
    """
    head, _, rest = task_file.read_text(encoding="utf-8").partition("[[generators]]")
    prompts = "" if variety else "\n[prompts]\nvariety = false"
    return "\n\n".join([head.rstrip() + prompts, as_toml(tables), rest[rest.index("[embedder]") :]])


def as_toml(tables: Sequence[Generator]) -> str:
    """Returns the generators' tables in TOML, as a task file has them."""
    return "\n\n".join(
        "\n".join(["[[generators]]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        for table in tables
    )
