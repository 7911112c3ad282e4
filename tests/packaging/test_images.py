"""What the image files must keep: their form, their safety, and install steps that are the tested ones."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
SCRIPTS = sorted(DOCKER.glob("*.sh"))
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "USER"} | {
    "VOLUME",
    "WORKDIR",
}


def instructions(path):
    """(instruction, rest) of every line of a Dockerfile, continuations joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line.strip() for line in text.splitlines()]
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


def last_stage(path):
    found = instructions(path)
    start = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def test_docker_images_exist_for_coordinator_and_party():
    assert [path.stem for path in DOCKERFILES] == ["coordinator", "party"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
class TestDockerfile:
    def test_dockerfiles_use_known_instructions_and_the_tested_python(self, path):
        found = instructions(path)
        assert {name for name, _ in found} <= INSTRUCTIONS
        assert found[0] == ("ARG", "BASE=python:3.11-slim")  # which a build pins by its digest
        assert {rest.split()[0] for name, rest in found if name == "FROM"} == {"$BASE"}

    def test_image_runs_as_a_plain_user_with_health_check_and_exec_entry(self, path):
        stage = dict(last_stage(path))
        assert stage["USER"] == "10001:10001"
        assert re.search(r'CMD \["undersong', stage["HEALTHCHECK"])
        for name in ("ENTRYPOINT", "CMD"):
            assert stage[name].startswith("["), name
        order = [name for name, _ in last_stage(path)]
        assert "RUN" not in order[order.index("USER") :]

    def test_dockerfiles_have_no_secret_archive_download_or_root_shell(self, path):
        text = path.read_text()
        assert not re.search(r"\b(ADD|sudo|curl|wget|chmod 777|--privileged|:latest)\b", text)
        assert not re.search(r"(?i)(password|secret|token|api_key)\s*=", text)

    def test_last_docker_stage_has_the_install_and_no_sources(self, path):
        copies = [rest for name, rest in last_stage(path) if name == "COPY"]
        assert copies[0] == "--from=build /opt/undersong /opt/undersong"
        assert all(re.search(r"docker/\w+-demo\.sh", copy) for copy in copies[1:])

    def test_image_installs_packages_by_hash_and_then_undersong_alone(self, path):
        steps = [rest for name, rest in instructions(path) if name == "RUN" and "pip install" in rest]
        assert steps[0].endswith(f" --no-deps --require-hashes -r {path.stem}.requirements.txt")
        assert re.search(r" --no-deps --no-build-isolation \. &&", steps[-1])
        assert not any("index" in step for step in (steps[0], steps[-1]))
        assert "://" not in path.read_text()

    def test_only_torch_is_installed_from_the_index_that_the_builder_names(self, path):
        """Without an index there is none. A second index beside the default one could bring anything."""
        steps = [rest for name, rest in instructions(path) if name == "RUN" and "pip install" in rest]
        if path.stem == "party":  # it has none
            assert "torch" not in path.read_text()
            assert len(steps) == 2
            return
        assert ("ARG", 'TORCH_INDEX=""') in instructions(path)
        assert len(steps) == 4
        assert all(step.startswith('test -z "$TORCH_INDEX" || ') for step in steps[1:3])
        assert steps[1].endswith(' --no-deps -c constraints.txt --index-url "$TORCH_INDEX" torch')
        assert steps[2].endswith(" -c constraints.txt sentence-transformers transformers")

    def test_every_path_that_a_dockerfile_copies_exists_in_its_context(self, path):
        allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for name, rest in instructions(path):
            if name != "COPY" or "--from" in rest:
                continue
            for source in [word for word in rest.split()[:-1] if not word.startswith("--")]:
                assert (ROOT / source).exists(), source
                assert any(Path(source).match(pattern) for pattern in allowed), source


def test_the_partys_image_holds_no_server_code():
    copied = " ".join(rest for name, rest in instructions(DOCKER / "party.Dockerfile") if name == "COPY")
    assert not re.search(r"\b(server|simulation)\b", copied)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_executable_posix_shell_that_stops_at_the_first_error(path):
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "set -eu" in lines
    assert path.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", path], check=True)


def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_compose_file_has_one_coordinator_and_three_parties():
    services = compose()["services"]
    parties = [name for name, service in services.items() if "PARTY" in (service.get("environment") or {})]
    assert len(parties) == 3
    assert sorted(services["coordinator"]["environment"]["PARTIES"].split()) == sorted(parties)
    for name in parties:
        assert services[name]["environment"]["PARTY"] == name
        private = [volume for volume in services[name]["volumes"] if "/notes/" in volume]
        assert private == [f"./examples/clinic/data/hospitals/{name}.jsonl:/notes/{name}.jsonl:ro"]
        assert (ROOT / private[0].split(":")[0]).exists()


def test_every_compose_service_is_hardened_with_a_read_only_root():
    known = {
        "build", "image", "entrypoint", "command", "depends_on", "environment", "volumes", "networks", "read_only",
        "tmpfs", "cap_drop", "cap_add", "security_opt", "restart", "init", "user", "healthcheck", "network_mode",
    }  # fmt: skip
    for name, service in compose()["services"].items():
        assert set(service) <= known, name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "ports" not in service  # the parties reach the coordinator over the network of the composition
        assert (ROOT / service["build"]["dockerfile"]).exists()


def test_every_compose_build_takes_the_package_index_of_torch():
    for name, service in compose()["services"].items():
        assert ("args" in service["build"]) == (name == "coordinator")
    assert compose()["services"]["coordinator"]["build"]["args"] == {"TORCH_INDEX": "${TORCH_INDEX:-}"}


def test_compose_volumes_are_declared_and_each_party_has_its_own():
    value = compose()
    mounted = {}
    for name, service in value["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if not source.startswith("."):
                mounted.setdefault(source, set()).add(name)
        for network in service.get("networks", []):
            assert network in value["networks"]
    assert set(mounted) == set(value["volumes"])
    for volume, services in mounted.items():
        if volume not in ("exchange", "published"):
            assert services == {volume}


def test_no_container_runs_as_root_and_shared_folders_have_its_user():
    for service in compose()["services"].values():
        assert "user" not in service
        assert "cap_add" not in service
        made = next(rest for name, rest in last_stage(ROOT / service["build"]["dockerfile"]) if name == "RUN")
        owned = made.partition("install --directory --owner=10001 --group=10001 --mode=0700 ")[2].split()
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            assert source.startswith(".") or target in owned, volume
