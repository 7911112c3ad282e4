"""Every benchmark in its quick form, one after the other: ``make bench``."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import benchmarks

# needs real text, which the project does not ship: give it with --data to the benchmark itself
WITH_DATA = ("cells", "grid", "utility", "papers", "refusals", "judged")
WITH_A_MODEL = ("live", "live_core")  # and with a server that answers for it
PARTS = (
    "cleaned_mixture",
    "judged_settings",
    "judged_tables",
    "live_pool",
    "loglog",
    "next_token",
    "paper_tables",
)  # of others, or given files


def main() -> int:
    failed = []
    for module in sorted(pkgutil.iter_modules([str(Path(benchmarks.__file__).parent)]), key=lambda each: each.name):
        name = module.name
        if name.startswith("_") or module.ispkg or name in (*WITH_DATA, *WITH_A_MODEL, *PARTS):
            continue
        print(f"== python -m benchmarks.{name} --quick", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--quick"], check=False).returncode:
            failed.append(name)
    for name in WITH_DATA:
        print(f"not run, it needs real text: python -m benchmarks.{name} --quick --data FOLDER")
    for name in WITH_A_MODEL:
        print(f"not run, it needs real text and a model: python -m benchmarks.{name} --help")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
