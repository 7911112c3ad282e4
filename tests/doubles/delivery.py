"""A task's run in this process, from its plan to its published folder, with a tiny model where a test needs one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.doubles.tasks import make_task
from undersong.run.options import SimulationOptions
from undersong.run.simulation import Delivered, Host, deliver
from undersong_server.progress import Silent
from undersong_server.runs import task as tasks


def delivered(task: tasks.Task, out: Path, **changes: Any) -> Delivered:
    """Runs the task into ``out``, going on with a run that is there; its noise can be repeated."""
    cache = changes.pop("public_cache", out.parent / "cache.sqlite")
    host = Host(changes.pop("environment", {}), changes.pop("progress", Silent()))
    options = SimulationOptions(**{"seed": 1, "insecure_noise_seed": 2} | changes)
    return deliver(task, out, options, public_cache=cache, host=host)


def delivered_by(
    model: Path, folder: Path, method: Sequence[str], *, embedder: str = "packaged", **fields: int
) -> Delivered:
    """Runs a small task in ``folder`` with this transformers model as its generator; ``fields`` are the generator's."""
    task = folder / "task.toml"
    if not task.exists():
        make_task(folder, parties=3, records=20)
        head, *_ = task.read_text(encoding="utf-8").partition("[[generators]]")
        generator = {"name": "tiny", "kind": "transformers", "path": str(model), "style": "completion", **fields}
        lines = [f"{key} = {json.dumps(value)}" for key, value in generator.items()]
        text = "\n".join([head.replace('"packaged"', json.dumps(embedder)), "[[generators]]", *lines, ""])
        task.write_text(text, encoding="utf-8")
    return delivered(tasks.load(task, method), folder / "out")
