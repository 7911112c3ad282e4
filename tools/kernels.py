"""Runs the numeric tests on every kernel of this processor: ``python -m tools.kernels`` (``make test-kernels``).

OpenBLAS chooses its kernel by OPENBLAS_CORETYPE, and torch by ATEN_CPU_CAPABILITY, when a process starts. So a row is
a run of pytest of its own. A kernel that this processor lacks is named as not run, and so is one for which numpy's
and scipy's libraries take another that is run: their wheels have Haswell's for Zen.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from undersong_common.printable import counted

ROOT = Path(__file__).resolve().parent.parent
# The processor's flag for the instructions of a kernel, as Linux names it.
KERNELS = {"Nehalem": "sse4_2", "Haswell": "avx2", "Zen": "avx2", "SkylakeX": "avx512f"}
TORCH_KERNELS = {"default": "", "avx2": "avx2", "avx512": "avx512f"}
THREADS = (1, 2, 4)
NUMERIC = (
    "tests/common/models/test_embedding.py",
    "tests/common/models/test_embedding_matrix.py",
    "tests/common/models/test_places.py",
    "tests/common/privacy/test_noise.py",
    "tests/common/program/test_threads_of_computations.py",
    "tests/protocol/statistics",
    "tests/server/evaluation/test_panel.py",
    "tests/server/test_learning.py",
    "tests/server/methods/test_discriminant.py",
)
WITH_TORCH = ("tests/common/models/test_embedding.py", "tests/common/models/test_hidden_states.py")


def processor_flags() -> set[str]:
    """Returns the flags of an x86-64 processor, as Linux lists them; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}


def kernels(table: dict[str, str] = KERNELS) -> list[str]:
    """Returns the kernels of a table that this processor can run."""
    flags = processor_flags()
    return [name for name, flag in table.items() if not flag or flag in flags]


TAKEN_KERNELS = """
import json, numpy, scipy.linalg, threadpoolctl
libraries = [row for row in threadpoolctl.threadpool_info() if row["user_api"] == "blas"]
print(json.dumps(sorted({row.get("architecture", row["internal_api"]) for row in libraries})))
"""


def taken_kernels(kernel: str) -> tuple[str, ...]:
    """Returns the kernels that numpy's and scipy's libraries take under a name; asks them in a new process."""
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    command = [sys.executable, "-c", TAKEN_KERNELS]
    process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(json.loads(process.stdout))


def distinct_kernels() -> dict[str, list[str]]:
    """Returns the kernels of this processor that differ, and beside each one the names that stand for it too."""
    names: dict[tuple[str, ...], list[str]] = {}
    for kernel in kernels():
        names.setdefault(taken_kernels(kernel), []).append(kernel)
    return {first: others for first, *others in names.values()}


def rows(distinct: Iterable[str]) -> Iterator[tuple[str, dict[str, str], tuple[str, ...]]]:
    """Yields each row's name, environment and files of tests, for kernels of OpenBLAS and all of torch's."""
    for kernel in distinct:
        for threads in THREADS:
            environment = {
                "OPENBLAS_CORETYPE": kernel,
                "OPENBLAS_NUM_THREADS": str(threads),
                "UNDERSONG_TEST_THREADS": str(threads),
            }
            yield f"{kernel}, {counted(threads, 'thread')}", environment, NUMERIC
    for capability in kernels(TORCH_KERNELS):
        yield f"torch, {capability}", {"ATEN_CPU_CAPABILITY": capability}, WITH_TORCH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="WORD", default="", help="rows with this word in their names")
    parser.add_argument("--processes", default="2", help="of pytest, for each row")
    arguments = parser.parse_args()
    distinct, failed = distinct_kernels(), []
    for name, environment, files in rows(distinct):
        if arguments.only in name:
            print(f"== {name}", flush=True)
            command = [sys.executable, "-m", "pytest", "-n", arguments.processes, *files]
            if subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode:
                failed.append(name)
    missing = [*sorted(set(KERNELS) - set(kernels())), *sorted(set(TORCH_KERNELS) - set(kernels(TORCH_KERNELS)))]
    for kernel, others in distinct.items():
        if others:
            print(f"not run, because the libraries take {kernel}'s kernel for it: {', '.join(others)}")
    print(f"not run, because this processor lacks them: {', '.join(missing) or 'none'}")
    print(f"failed: {'; '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
