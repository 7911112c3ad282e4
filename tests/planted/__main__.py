"""Plants each listed mistake in a copy of the tree and runs the tests that should notice: ``make planted``.

``python -m tests.planted --processes 3 --room pages`` prints what noticed each mistake of a room. A mistake is noticed
where one of its tests fails with it and passes without it; the latter is looked at once, for all of them, at the end.
Results stand in build/planted.jsonl, and another call goes on from them: a mistake is tried again when its entry, its
file or its tests have changed. Exit code 1 where a mistake is not noticed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.planted.texts import LEAST, TextMistake, read_mistakes

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "build" / "planted.jsonl"
LONGEST_S = 1_200  # of the tests of one mistake
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py::.+?)(?: - .*)?$", re.MULTILINE)


def copy_tree(folder: Path) -> Path:
    """Copies the files that git lists, changed ones as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode("utf-8").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_tests(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy of the tree, slow ones too."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-rfE", "--tb=no", "-m", "", *arguments]
    rooms = [str(folder), *(str(folder / room) for room in ("common", "protocol", "client", "server", "simulation"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(rooms), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "500"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


def noticed_by(mistake: TextMistake, folder: Path) -> str:
    """Returns the test that notices a mistake, or "" if none does. Raises ValueError for an entry that is wrong."""
    before = mistake.plant(folder)
    try:
        planted = run_tests(folder, "-x", *mistake.tests)
    finally:
        (folder / mistake.file).write_text(before, "utf-8")
    if planted.returncode == 0:
        return ""
    failed = FAILED.search(planted.stdout)
    if planted.returncode != 1 or failed is None:
        raise ValueError(f"{mistake.name}: its tests did not run\n{planted.stdout[-2000:]}{planted.stderr[-2000:]}")
    return failed[1]


def failing_anyway(folder: Path, tests: Iterable[str]) -> list[str]:
    """Returns the tests among those that noticed something that fail without a mistake too.

    Raises ValueError where the tests did not run, because one of them is gone for example.
    """
    names = sorted(set(tests))
    if not names:
        return []
    sound = run_tests(folder, *names)
    if sound.returncode not in (0, 1):
        raise ValueError(f"the noticing tests did not run\n{sound.stdout[-2000:]}{sound.stderr[-2000:]}")
    return FAILED.findall(sound.stdout)


def digest_of(mistake: TextMistake) -> str:
    """Returns a hash of the entry, of its file and of its files of tests."""
    state = hashlib.sha256(repr(mistake).encode())
    for name in (mistake.file, *(test.partition("::")[0] for test in mistake.tests)):
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            state.update(file.read_bytes())
    return state.hexdigest()


class Results:
    """Which test noticed each mistake, "" for none, in a file to which every finished one is appended."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        self._tests: dict[str, str] = {line["digest"]: line["noticed_by"] for line in map(json.loads, lines)}

    def test_of(self, mistake: TextMistake) -> str | None:
        """Returns what noticed a mistake; None if it was not tried as it is now."""
        return self._tests.get(digest_of(mistake))

    def add(self, mistake: TextMistake, test: str) -> None:
        digest = digest_of(mistake)
        self._tests[digest] = test
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"digest": digest, "name": mistake.name, "noticed_by": test}) + "\n")


def plant_all(mistakes: Sequence[TextMistake], results: Results, processes: int, folder: Path) -> list[str]:
    """Plants each mistake in a copy of the tree below ``folder``; returns what is wrong with entries."""
    wrong: list[str] = []
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(min(processes, len(mistakes))):
        copies.put(copy_tree(folder / str(number)))

    def attempt(mistake: TextMistake) -> str:
        copied = copies.get()
        try:
            return noticed_by(mistake, copied)
        finally:
            copies.put(copied)

    with ThreadPoolExecutor(processes) as pool:
        tried = {pool.submit(attempt, mistake): mistake for mistake in mistakes}
        for number, future in enumerate(as_completed(tried), 1):
            mistake = tried[future]
            try:
                test = future.result()
            except (ValueError, subprocess.TimeoutExpired) as error:
                wrong.append(str(error))
                said = "WRONG ENTRY"
            else:
                results.add(mistake, test)
                said = test or "NOBODY NOTICES"
            print(f"{number}/{len(mistakes)} {mistake.name}: {said}", flush=True)
    return wrong


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--room", choices=LEAST)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    mistakes = [mistake for mistake in read_mistakes() if options.room in (None, mistake.room)]
    results = Results(options.results)
    waiting = [mistake for mistake in mistakes if results.test_of(mistake) is None]
    with tempfile.TemporaryDirectory(prefix="undersong-planted-") as name:
        wrong = plant_all(waiting, results, options.processes, Path(name))
        noticing = {mistake.name: test for mistake in mistakes if (test := results.test_of(mistake))}
        unsound = failing_anyway(copy_tree(Path(name) / "sound"), noticing.values())
    wrong += [f"{mistake}: {test} fails without it too" for mistake, test in noticing.items() if test in unsound]
    unnoticed = [mistake.name for mistake in mistakes if results.test_of(mistake) == ""]
    print(f"{len(mistakes) - len(unnoticed) - len(wrong)} of {len(mistakes)} mistakes are noticed")
    print(*(f"nobody notices: {mistake}" for mistake in unnoticed), *wrong, sep="\n")
    sys.exit(1 if unnoticed or wrong else 0)


if __name__ == "__main__":
    main()
