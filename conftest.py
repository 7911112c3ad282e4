"""How the suite runs: one thread per worker, what shares a set-up on one worker, and quick tests that stay quick."""

import gc
import hashlib
import importlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from socketserver import BaseServer
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.doubles.pace import ALL, FEW, FEW_EXAMPLES
from undersong_common.models.model_files import PACKAGED
from undersong_common.program import entry

# Workers share the cores, and the tests' models are so small that a second thread only waits for the first. Set before
# numpy or torch is imported; the programs that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

# Streams between servers and parties in the tests' own process are read as in the programs.
os.environ.setdefault("GRPC_EXPERIMENTS", entry.POLLING)

# Journals and ledgers wait for the disk at every entry, half of the time of many tests. No test cuts the power, and
# what a killed process wrote is not lost, whether it lies on a disk or in memory.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# A test that loads Ray leaves it loaded; the next one that begins it needs it to ask for a token.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))

# What is made before the first test, five thousand tests and the modules that they import, stays: Python looks for no
# garbage while it is made, and not among it afterwards. That took a quarter of the time before the first test.
gc.disable()

# What takes longest is begun first, and the server's many short files last: no worker is left with one at the end.
LONGEST_FIRST = (
    "tests/common/models/test_embedding_matrix.py",
    "tests/federation/test_end_to_end.py",
    "tests/simulation/run/test_deliver.py",
    *(f"tests/{room}/" for room in ("federation", "simulation", "trial", "browser", "packaging", "noninterference")),
    *(f"tests/{room}/" for room in ("protocol/secagg", "protocol/statistics", "client", "examples")),
    *("benchmarks/dpsgd/dpsgd_tests/", "tests/tools/", "tests/benchmarks/", "tests/test_"),
)
LAST = "tests/server/"
# The clinic's coordinator and five daemons, as processes, serve both.
TOGETHER = dict.fromkeys(("tests/federation/test_end_to_end.py", "tests/federation/test_faults.py"), "clinic")
# Of `make quick`, these alone load torch, which takes a process more than two seconds: one worker does.
QUICK_WITH_TORCH = (
    "tests/server/test_learning.py",
    *(f"tests/server/methods/test_{name}.py" for name in ("interface", "prompts", "tuned")),
    "tests/server/report/test_report.py",
    "tests/simulation/run/test_author_errors.py",
    "tests/simulation/comparison/test_compare.py",
)

# Of `make test`, these load transformers, which takes a process five seconds: one worker does, and begins with them.
WITH_TRANSFORMERS = (
    "tests/common/models/test_embedding.py",
    "tests/common/models/test_hidden_states.py",
    "tests/common/models/test_model_files.py",
    "tests/protocol/statistics/test_fine_tuned_teachers.py",
    "tests/protocol/statistics/test_rows.py",
    "benchmarks/dpsgd/dpsgd_tests/",
    "tests/server/test_learning.py",
    "tests/server/evaluation/test_adaptation.py",
    "tests/server/evaluation/test_fine_tuning.py",
    "tests/server/generators/kinds/test_folders.py",
    "tests/server/generators/kinds/test_transformers",
    "tests/server/generators/test_spreading.py",
    *(f"tests/server/methods/test_{name}.py" for name in ("discriminator", "tuned", "vector")),
    *(f"tests/simulation/run/test_{name}.py" for name in ("endpoints", "fine_tuned_teachers")),
)

# The mark of all tests of a file.
OF_A_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(heavy|slow)\b", re.MULTILINE)

# Of these, processes of their own embed texts or train teachers.
PROCESSES_NEED_TORCH = (
    "tests/client/answering/test_restarts.py",
    "tests/federation/test_clocks_and_versions.py",
    "tests/federation/test_end_to_end.py",
    "tests/federation/test_faults.py",
    "tests/federation/test_refusals.py",
    "tests/federation/test_transport_contract.py",
    "tests/noninterference/",
    "tests/simulation/run/test_deliver.py",
)
NEED_TORCH = ("torch", "sentence_transformers", "accelerate", "peft", "opacus")


# Their exact versions hold others below the newest ones, which `make test-versions` installs without them.
HOLD_OTHERS = ("flwr", "ray")


class Skips(MetaPathFinder):
    """Skips the test, or the file of tests, that imports one of some packages."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        if fullname in self._names:
            pytest.skip(f"needs {fullname}", allow_module_level=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-torch", action="store_true", help="skip what needs torch (another release of Python)")


def pytest_configure(config: pytest.Config) -> None:
    # Time passes on a busy machine too. The quicker suites draw the same few examples every time, so that they fail
    # where the code has changed; `make test-all` draws new ones and more (tests/doubles/pace.py).
    settings.register_profile(ALL, deadline=None, derandomize=False)
    settings.register_profile(FEW, deadline=None, derandomize=True, max_examples=FEW_EXAMPLES)
    settings.load_profile(FEW if config.option.markexpr else ALL)
    if config.option.markexpr:
        # Examples of constants that hypothesis reads in every module of ours would change with what is imported.
        providers._get_local_constants = providers.Constants
    if config.getoption("--without-torch"):
        sys.meta_path.insert(0, Skips(NEED_TORCH))
        sys.meta_path.append(Skips(HOLD_OTHERS))  # behind all finders: only what is not installed


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Imports no file whose every test the chosen marks leave out: for `make quick` that is a third of the suite."""
    if not collection_path.match("test_*.py"):
        return None
    mark = OF_A_FILE.search(collection_path.read_text(encoding="utf-8"))
    return True if mark and f"not {mark[1]}" in config.option.markexpr.split(" and ") else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Each worker begins with other files: in a fresh checkout it finds those compiled that another has begun with."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and isinstance(collector, pytest.Directory):
        found = report.result
        first = int(worker["workerid"].removeprefix("gw")) * len(found) // worker["workercount"]
        report.result = [*found[first:], *found[:first]]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--without-torch"):
        for item in items:
            if item.nodeid.startswith(PROCESSES_NEED_TORCH):
                item.add_marker(pytest.mark.skip("its processes need torch"))

    def rank(item: pytest.Item) -> int:
        if item.nodeid.startswith(WITH_TRANSFORMERS):
            return -1
        if item.nodeid.startswith(LAST):
            return len(LONGEST_FIRST) + 1
        starts = enumerate(LONGEST_FIRST)
        return next((place for place, start in starts if item.nodeid.startswith(start)), len(LONGEST_FIRST))

    items.sort(key=lambda item: (rank(item), item.path))  # every worker's in one order


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)  # Tests hold what they make for milliseconds: hardly any of it is garbage in a cycle.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all tests of a file, and of the files that share a set-up of the session."""
    from xdist.scheduler import LoadFileScheduling

    if "not heavy" in config.option.markexpr:
        with_torch = QUICK_WITH_TORCH
    else:
        with_torch = WITH_TRANSFORMERS if config.option.markexpr == "not slow" else ()

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "torch" if file.startswith(with_torch) else TOGETHER.get(file, file)

    config.option.loadscopereorder = False  # by number of tests, which says little of the time that they take
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def costly_once() -> Iterator[None]:
    """Keeps what a process would compute again with the same result: hashes of weights, and the packaged model."""
    from undersong_common.models import embedding, model_files
    from undersong_common.models.embedding import Embedder

    hashes: dict[tuple[object, ...], str] = {}
    checked_files: set[tuple[object, ...]] = set()
    models: dict[str, Embedder] = {}
    compute, check, load = model_files._file_sha256, model_files._check_json, Embedder._load_encoder
    packaged_folder = model_files.model_folder(PACKAGED)

    def state_of(path: Path) -> tuple[object, ...]:
        state = path.stat()
        return path, state.st_ino, state.st_size, state.st_mtime_ns

    def hashed(path: Path) -> str:
        key = state_of(path)
        if key not in hashes:
            hashes[key] = compute(path)
        return hashes[key]

    def checked(folder: Path, name: str) -> None:
        """Reads a file of the packaged model once; files of tests' own models are small and read every time."""
        if folder != packaged_folder:
            check(folder, name)
        elif (key := state_of(folder / name)) not in checked_files:
            check(folder, name)
            checked_files.add(key)

    def loaded(embedder: Embedder) -> Any:
        """Takes over a model that was tried out, where the files are still the same."""
        if embedder._source == PACKAGED and embedder._encoder is None:
            current = embedding._model_fingerprint(PACKAGED, embedder.max_windows)
            if current == embedder.fingerprint and current in models:
                embedder._encoder = models[current]._encoder
            load(embedder)
            models.setdefault(current, embedder)
        return load(embedder)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model_files, "_file_sha256", hashed)
        patched.setattr(model_files, "_check_json", checked)
        patched.setattr(Embedder, "_load_encoder", loaded)
        yield


@pytest.fixture(scope="session", autouse=True)
def templates_once() -> Iterator[None]:
    """Keeps compiled templates between the pages of tests, each of which has an environment of its own.

    Servers look every 20 ms instead of every 0.5 s whether they are to stop.
    """
    from jinja2 import Environment
    from jinja2.bccache import Bucket, BytecodeCache

    class Compiled(BytecodeCache):
        known: ClassVar[dict[tuple[object, ...], Any]] = {}

        def load_bytecode(self, bucket: Bucket) -> None:
            bucket.code = self.known.get(self._place(bucket))

        def dump_bytecode(self, bucket: Bucket) -> None:
            self.known[self._place(bucket)] = bucket.code

        def _place(self, bucket: Bucket) -> tuple[object, ...]:
            made = bucket.environment  # code is compiled for its escaping and its last step
            return bucket.key, bucket.checksum, made.autoescape, getattr(made.finalize, "__code__", None)

    begin = Environment.__init__

    def begun(self: Environment, **options: Any) -> None:
        begin(self, bytecode_cache=Compiled(), **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Environment, "__init__", begun)
        patched.setattr(BaseServer.serve_forever, "__defaults__", (0.02,))
        yield


@pytest.fixture(scope="session", autouse=True)
def cheap_hashes() -> Iterator[None]:
    """Hashes that are made to take long take none: a plan's words, and passwords of a page.

    Programs that tests start have the real ones; tests/protocol/test_manifest_names.py has them too.
    """
    from argon2 import PasswordHasher

    from undersong_common.pages import accounts
    from undersong_protocol.agreement import manifest

    def scrypt(data: bytes, **given: Any) -> bytes:
        return hashlib.scrypt(data, **{**given, "n": 2})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifest, "hashlib", SimpleNamespace(scrypt=scrypt))
        patched.setattr(accounts, "PasswordHasher", partial(PasswordHasher, time_cost=1, memory_cost=64))
        yield


@pytest.fixture(autouse=True)
def packaged_embeds_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """`data add` neither counts long texts nor embeds with the packaged model: most tests need no vector."""
    from undersong_client.operations import data
    from undersong_common.models.embedding import Embedder, TextLengths

    embed, lengths = data.embed, Embedder.lengths

    def later(home: Any, embedder: Embedder, progress: Any) -> int:
        if embedder._source != PACKAGED:
            return embed(home, embedder, progress)
        return 0

    def counted(embedder: Embedder, texts: Sequence[str]) -> TextLengths:
        waits = embedder._source == PACKAGED and embedder._encoder is None
        return TextLengths(len(texts), 0, 0) if waits else lengths(embedder, texts)

    monkeypatch.setattr(data, "embed", later)
    monkeypatch.setattr(Embedder, "lengths", counted)


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is marked neither heavy nor slow starts no Python process and loads no embedder."""
    if request.node.get_closest_marker("heavy") or request.node.get_closest_marker("slow"):
        return
    start = subprocess.Popen.__init__

    def no_python(self: subprocess.Popen[bytes], command: Any, *arguments: Any, **options: Any) -> None:
        assert sys.executable not in command, "this test starts a Python process: mark it heavy"
        start(self, command, *arguments, **options)

    def no_weights(_: object) -> None:
        pytest.fail("this test loads an embedder's weights: mark it heavy")

    monkeypatch.setattr(subprocess.Popen, "__init__", no_python)
    monkeypatch.setattr("undersong_common.models.embedding.Embedder._load_encoder", no_weights)


@pytest.fixture(scope="session")
def dpsgd_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package of benchmarks/dpsgd as pip leaves it: its entry points are found."""
    from tests.doubles.foreign_package import write_metadata

    folder = tmp_path_factory.mktemp("installed")
    write_metadata(
        folder,
        "undersong_dpsgd",
        "0.3.0",
        (Path(__file__).parent / "benchmarks/dpsgd/pyproject.toml").read_text(),
    )
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(folder))
