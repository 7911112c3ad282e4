"""The wheel holds the five packages with all their files and nothing else, and harms no other package."""

import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from tests.doubles.processes import ROOT
from tools import release, wheels
from undersong_common.version import SOFTWARE, VERSION

HOMES = {
    "undersong_common": "common",
    "undersong_protocol": "protocol",
    "undersong_client": "client",
    "undersong_server": "server",
    "undersong": "simulation",
}
PARTY = ("undersong_client", "undersong_common", "undersong_protocol")


def packaged(package):
    """Every file of a package in the source tree, by its path in a wheel."""
    root = ROOT / HOMES[package]
    files = (path for path in (root / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix() for path in files}


def list_contents(wheel):
    """Every file of a wheel but its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that the coordinator's image builds: all five packages."""
    folder = tmp_path_factory.mktemp("wheel")
    return wheels.build(wheels.copy_for(ROOT / "docker" / "coordinator.Dockerfile", folder / "src"), folder)


@pytest.fixture(scope="module")
def party_wheel(tmp_path_factory):
    """The wheel that the party's image builds, from a tree without the server's folder and the simulation's."""
    folder = tmp_path_factory.mktemp("party-wheel")
    source = wheels.copy_for(ROOT / "docker" / "party.Dockerfile", folder / "src")
    assert not (source / "server").exists()
    assert not (source / "simulation").exists()
    return wheels.build(source, folder)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in a folder with a stranger's, who ships ``common`` and ``server``."""
    folder = tmp_path_factory.mktemp("installed")
    return wheels.install(folder / "site", wheel, wheels.stranger(folder / "stranger"))


@pytest.mark.slow
def test_wheel_holds_only_the_five_packages_with_all_their_files(wheel):
    assert list_contents(wheel) == set().union(*map(packaged, HOMES))


@pytest.mark.slow
def test_wheel_of_a_party_holds_only_three_packages(party_wheel):
    assert list_contents(party_wheel) == set().union(*map(packaged, PARTY))


def test_every_package_root_is_installed_and_type_checked():
    value = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert value["setuptools"]["packages"]["find"]["where"] == list(HOMES.values())
    assert set(HOMES) <= set(value["mypy"]["packages"])


@pytest.mark.slow
def test_wheel_has_the_version_of_the_program(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"undersong-{VERSION}.dist-info/METADATA").decode()
    assert HeaderParser().parsestr(metadata)["Version"] == VERSION


@pytest.mark.slow
def test_wheel_keeps_files_of_packages_named_common_and_server(installed):
    script = "import common, server, undersong_common, undersong_server; print(common.OWNER, server.OWNER)"
    assert wheels.run(installed, "-c", script).split() == ["stranger", "stranger"]
    found = {path.relative_to(installed).as_posix() for path in installed.rglob("*.*") if path.is_file()}
    assert set().union(*map(packaged, HOMES)) <= found


@pytest.mark.slow
def test_installed_programs_print_their_version(installed):
    for program in ("undersong", "undersong-party"):
        said = wheels.run(installed, str(installed / "bin" / program), "--version")
        assert said.strip() == SOFTWARE


@pytest.mark.slow
def test_five_packages_are_imported_from_their_installation(installed):
    script = f"import {', '.join(HOMES)}\nfor each in ({', '.join(HOMES)}): print(each.__file__)"
    places = [Path(line) for line in wheels.run(installed, "-c", script).splitlines()]
    assert places == [installed / package / "__init__.py" for package in HOMES]


@pytest.mark.slow
def test_the_partys_program_runs_where_no_server_is_installed(party_wheel, tmp_path):
    installed = wheels.install(tmp_path / "site", party_wheel)
    script = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
    script += f"sys.path[:] = [p for p in sys.path if not p.startswith({str(ROOT)!r}) or 'site-packages' in p]\n"
    script += (
        "from importlib.util import find_spec\nassert find_spec('undersong_server') is find_spec('undersong') is None\n"
    )
    script += "sys.argv = ['undersong-party', '--help']\nfrom undersong_client.cli.app import main\nmain()"
    assert "undersong-party" in wheels.run(installed, "-c", script)


@pytest.mark.slow
def test_a_release_builds_the_same_bytes_of_the_wheel_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")  # what the build sets does not outlive this test
    wheels_built = [release.build(tmp_path / name)[0] for name in ("first", "second")]
    assert release.sha256(wheels_built[0]) == release.sha256(wheels_built[1])
