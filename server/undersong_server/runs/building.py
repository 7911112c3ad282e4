"""Builds what a task file describes: its prompts, and the author that writes with its generators and prompts."""

from __future__ import annotations

from collections.abc import Mapping

from undersong_common.embedding import Embed
from undersong_server import generators
from undersong_server.generators.author import Author
from undersong_server.journal import Journal
from undersong_server.progress import Progress
from undersong_server.prompts.rendering import Prompts
from undersong_server.runs.task import Task


def build_author(
    task: Task, embed: Embed, environment: Mapping[str, str], journal: Journal, progress: Progress, *, seed: int
) -> Author:
    """The author of a task: its generators and its prompts, the task's own templates among them.

    Args:
        embed: texts -> quantised unit embeddings, for generators that draw by similarity.
        environment: where generators find their keys, such as ``os.environ``.
        journal: keeps every answer.
        seed: of the generators' requests.

    Raises ConfigurationError for a generator or a prompt that cannot be built.
    """
    built = generators.build_generators(
        task.generators,
        labels=task.task.labels,
        folder=task.locate(""),
        embed=embed,
        environment=environment,
    )
    return Author({each.name: each for each in built}, build_prompts(task), journal, progress, seed=seed)


def build_prompts(task: Task) -> Prompts:
    """The built-in templates, those of the task's [prompts] folder in place of their namesakes."""
    folder = task.locate(task.prompts.folder) if task.prompts.folder else None
    return Prompts.load(description=task.task.description, labels=task.task.labels, folder=folder)
