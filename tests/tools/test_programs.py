"""Both programs as a shell meets them: help without delay, completion, quiet commands."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.main

from tests.doubles.pace import examples
from tests.doubles.processes import HOSPITAL, OPERATOR, command
from tools.documents import programs

pytestmark = pytest.mark.heavy

MODULES = {"undersong": OPERATOR, "undersong-party": HOSPITAL}
# What takes long to import, or leads to it; none of them has a part in printing help.
HEAVY = {
    *("torch", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "transformers", "sentence_transformers"),
    *("pydantic", "cryptography", "grpc", "google", "openai", "jinja2", "prometheus_client", "flwr", "ray"),
}
LARGEST_MODULES = 440  # 352 and 338 when this was written; each costs a fraction of a millisecond
EVERY_HELP = """
import contextlib, io, json, sys
from {module} import main
printed = {{}}
for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    sys.argv = [*words.split(), "-h"]
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    printed[words] = out.getvalue()
print(json.dumps([printed, sorted(sys.modules)]))
"""


def commands(name: str, command: object) -> Iterator[str]:
    """The program itself, its groups and its commands, as they are typed."""
    yield name
    for word, child in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {word}", child)


@pytest.mark.slow
@pytest.mark.parametrize("program", MODULES)
def test_help_of_no_command_imports_slow_libraries(program):
    every = list(commands(program, typer.main.get_command(dict(programs())[program])))
    assert len(every) > 20
    every = every[:: examples(few=6, many=1)]
    code = EVERY_HELP.format(module=MODULES[program])
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(every)], capture_output=True, text=True, check=True, timeout=120
    )
    printed, modules = json.loads(done.stdout)
    assert [words for words in every if f"Usage: {words} " not in printed[words]] == []
    assert "--install-completion" in printed[program]
    assert {module.partition(".")[0] for module in modules} & HEAVY == set()
    assert len(modules) < LARGEST_MODULES


def completed(program: str, words: str, **environment: str) -> list[str]:
    """What a shell offers for the last of ``words``."""
    typed = words.split(" ")
    environment |= {
        f"_{program.upper().replace('-', '_')}_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
    }
    return command(MODULES[program], [], env=environment).stdout.split()


@pytest.mark.slow
def test_a_shell_completes_commands_options_and_values():
    assert completed("undersong", "undersong run s") == ["start", "stop", "show", "search"]
    assert completed("undersong", "undersong evaluate --head ") == ["auto", "linear", "mlp", "three-layer"]
    assert completed("undersong-party", "undersong-party enr") == ["enroll"]


@pytest.mark.slow
def test_a_shell_completes_the_names_of_runs(tmp_path):
    for name in ("first", "fourth", "second"):
        (tmp_path / "home" / "runs" / name).mkdir(parents=True)
    found = completed("undersong", "undersong run watch f", UNDERSONG_HOME=str(tmp_path / "home"))
    assert found == ["first", "fourth"]
    assert completed("undersong", "undersong export fo", UNDERSONG_HOME=str(tmp_path / "elsewhere")) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", MODULES)
def test_completion_can_be_installed(program):
    shown = command(MODULES[program], [], env={f"_{program.upper().replace('-', '_')}_COMPLETE": "source_bash"})
    assert f"complete -o default -F _{program.replace('-', '_')}_completion {program}" in shown.stdout
