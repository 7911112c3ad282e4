"""Time and memory of whole simulations, compared with goals for two quiet cores and with the plan's estimate.

    python -m benchmarks.simulation [--quick] [--json] [--only PART ...]

Each part runs in a process of its own, which it starts with. ``records``: 100 parties with 5 000 short records in all,
which are embedded first, and two votes. ``parties``: one vote of 12 000 coordinates among 1 000 parties with 100
records each, embedded before (``benchmarks.flower --in-process``). ``clinic``: the example with the default method, its
outputs and its test. JSON, by part: ``seconds``, ``cpu_s``, ``peak_bytes``, the goals ``goal_s`` and ``goal_bytes``,
``planned_s`` (the plan's range), ``load_average`` (others' work lengthens the seconds). ``--quick``: a tenth of the
parties, without the clinic.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.doubles.tasks import make_task

ROOT = Path(__file__).resolve().parents[1]
GOALS: dict[str, dict[str, float]] = {
    "records": {"goal_s": 30.0},
    "parties": {"goal_s": 60.0, "goal_bytes": 2e9},
    "clinic": {"goal_s": 25.0},
}
RECORDS_A_PARTY = {"records": 50, "parties": 100}


def measure(part: str, quick: bool) -> dict[str, Any]:
    """Returns the figures of one part, which runs in this process alone."""
    divisor = 10 if quick else 1
    if part == "parties":
        command = [sys.executable, "-m", "benchmarks.flower", "--json", "--in-process", "--parties"]
        command += [str(1000 // divisor), "--records", str(RECORDS_A_PARTY[part])]
        (row,) = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
        figures = {"seconds": row["seconds"]["all"], "cpu_s": row["cpu_seconds"]}
        return {**figures, "peak_bytes": row["coordinator_peak_bytes"], "load_average": row["load_average"]}
    from undersong.run.options import SimulationOptions
    from undersong.run.simulation import Host, deliver
    from undersong_server.progress import Silent
    from undersong_server.runs import task as tasks
    from undersong_server.runs.planning import plan_figures, plan_run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = ROOT / "examples" / "clinic" / "task.toml"
        if part == "records":
            method = {"rounds": 3, "votes": 3}
            path = make_task(folder, parties=100 // divisor, records=RECORDS_A_PARTY[part], samples=120, method=method)
        task = tasks.load(path, [])
        start_s = time.perf_counter()
        deliver(
            task,
            folder / "out",
            SimulationOptions(seed=1),
            public_cache=folder / "cache.sqlite",
            host=Host({}, Silent()),
        )
        seconds = time.perf_counter() - start_s
        planned_s = plan_figures(plan_run(task)).cost.seconds
    return {
        "seconds": round(seconds, 1),
        "cpu_s": round(time.process_time(), 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "planned_s": [round(each, 1) for each in planned_s],
        "load_average": [round(each, 1) for each in os.getloadavg()],
    }


def main() -> int:
    """Prints the figures; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the parties, without the clinic")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", choices=GOALS, help="parts")
    options = parser.parse_args()
    parts = options.only or [part for part in GOALS if not (options.quick and part == "clinic")]
    figures = {}
    for part in parts:
        if options.only == [part]:
            figures[part] = {**measure(part, options.quick), **GOALS[part]}
            continue
        command = [sys.executable, "-m", "benchmarks.simulation", "--json", "--only", part]
        completed = subprocess.run(
            [*command, *(["--quick"] if options.quick else [])], stdout=subprocess.PIPE, check=False
        )
        figures |= json.loads(completed.stdout)
    if options.json:
        print(json.dumps(figures))
    for part, row in {} if options.json else figures.items():
        goal = f"{row['goal_bytes'] / 1e9:.0f} GB" if "goal_bytes" in row else "none"
        print(
            f"{part:8} {row['seconds']:6.1f} s (goal {row['goal_s']:.0f} s; planned {row.get('planned_s', 'nothing')}),"
            f" CPU {row['cpu_s']:.1f} s, {row['peak_bytes'] / 1e9:.2f} GB (goal {goal}), load {row['load_average'][0]}"
        )
    missed_parts = [
        part
        for part, row in figures.items()
        if row["seconds"] > row["goal_s"] or row["peak_bytes"] > row.get("goal_bytes", float("inf"))
    ]
    return 1 if missed_parts else 0


if __name__ == "__main__":
    sys.exit(main())
