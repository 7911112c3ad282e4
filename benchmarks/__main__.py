"""Runs every benchmark that has a ``--quick`` form in that form, one after the other: ``make bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import benchmarks

# These need real texts, which the project does not ship. Run them one by one with --data.
WITH_DATA = ("cells", "grid", "utility", "papers", "refusals", "judged")


def main() -> int:
    failed: list[str] = []
    without_quick_form: list[str] = []
    for file in sorted(Path(benchmarks.__file__).parent.glob("[!_]*.py")):
        name, source = file.stem, file.read_text(encoding="utf-8")
        if "__main__" not in source:  # other benchmarks import it
            continue
        if '"--quick"' not in source:
            without_quick_form.append(name)
        elif name not in WITH_DATA:
            print(f"== python -m benchmarks.{name} --quick", flush=True)
            if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--quick"], check=False).returncode:
                failed.append(name)
    for name in WITH_DATA:
        print(f"not run, it needs real text: python -m benchmarks.{name} --quick --data FOLDER")
    for name in without_quick_form:
        print(f"not run, it has no quick form: python -m benchmarks.{name} --help")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
