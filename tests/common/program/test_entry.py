"""How a program ends: one message, the right exit code, nothing of a value."""

import ast
import ctypes
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import typer

from tests.doubles import processes
from undersong_common import errors
from undersong_common.errors import ConfigurationError
from undersong_common.program import entry

STOPPED = "stopped; nothing is lost: the same command continues\n"


def ended(capsys, command):
    with pytest.raises(SystemExit) as end:
        entry.run(command)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_output_cannot_encode_become_json_escapes(monkeypatch, encoding):
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", output)
    words = "Kärdiologie \u2192 \U0001f600 \udcff"
    with pytest.raises(SystemExit) as end:
        entry.run(lambda: print(json.dumps(words, ensure_ascii=False)))
    assert end.value.code == 0
    assert json.loads(output.buffer.getvalue().decode(encoding)) == words


class FullDisk(io.StringIO):
    def write(self, _text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_exit_code_is_the_error_s_where_the_output_s_disk_is_full(monkeypatch, stream):
    def fail():
        raise ConfigurationError("no such file")

    monkeypatch.setattr(sys, "argv", ["undersong", "plan", "--json"])
    monkeypatch.setattr(sys, stream, FullDisk())
    with pytest.raises(SystemExit) as end:
        entry.run(fail)
    assert end.value.code == 2


def test_lack_of_memory_is_reported_as_a_machine_fault(capsys):
    def fill():
        raise MemoryError

    code, said = ended(capsys, fill)
    assert (code, said) == (75, "error: there is not enough memory\n  remedy: free memory, or give this machine more\n")


def test_command_argument_that_is_not_utf_8_is_refused_by_its_number(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["undersong-party", "add", os.fsdecode(b"notes\xff.csv")])
    code, said = ended(capsys, lambda: pytest.fail("the command was run"))
    assert code == 2
    assert "argument 2 of the command holds bytes that are no text" in said


def interrupted(wrap):
    """A command that Ctrl-C meets in the middle of somebody else's code, which makes another error of it."""

    def command():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            wrap(interrupt)

    return command


def _as_cause(interrupt):
    # Python 3.11 itself, where a class is made while a module is imported
    raise RuntimeError("Error calling __set_name__") from interrupt


def _hidden(_interrupt):
    raise ConfigurationError("the model cannot be loaded") from None


def _twice(interrupt):
    try:
        raise OSError("first") from interrupt
    except OSError as error:
        raise ImportError("second") from error


@pytest.mark.parametrize("wrap", [_as_cause, _hidden, _twice])
def test_ctrl_c_ends_as_interrupted_whatever_exception_wraps_it(capsys, wrap):
    code, said = ended(capsys, interrupted(wrap))
    assert (code, said) == (entry.INTERRUPTED, STOPPED)


@pytest.fixture
def ctrl_c_counts():
    """A job in a shell's background is started with it ignored, and so are its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _in_compiled_text():
    exec("signal.raise_signal(signal.SIGINT)", {"signal": signal})


def test_ctrl_c_in_compiled_text_does_not_kill_the_interpreter_later(capsys, ctrl_c_counts):
    try:
        mark = ctypes.c_int.in_dll(ctypes.pythonapi, "_Py_UnhandledKeyboardInterrupt")
    except ValueError:
        pytest.skip("since Python 3.12 the mark has no name to be found by")
    with pytest.raises(KeyboardInterrupt):
        _in_compiled_text()
    assert mark.value == 1
    assert ended(capsys, _in_compiled_text)[0] == entry.INTERRUPTED
    assert mark.value == 0


@pytest.mark.slow
def test_ctrl_c_in_code_compiled_from_text_is_an_exit_code_under_python_m(tmp_path, ctrl_c_counts):
    called = "entry.run(test_entry._in_compiled_text)"
    (tmp_path / "program.py").write_text(
        f"from undersong_common.program import entry\nfrom tests.common.program import test_entry\n{called}"
    )
    path = os.pathsep.join(map(str, (tmp_path, *processes.SOURCES)))
    done = processes.command("program", [], env={"PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (entry.INTERRUPTED, STOPPED)


def test_ctrl_c_while_an_error_is_printed_ends_as_interrupted(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    def wrong():
        raise ConfigurationError("the file is missing", "name another")

    monkeypatch.setattr(entry, "printable_lines", interrupt)
    assert ended(capsys, wrong) == (entry.INTERRUPTED, STOPPED)


ERRORS = [
    (errors.ConfigurationError("no such file", "check the path"), 2),
    (errors.PrivacyRefusal("too much", "ask for less", code="over-budget"), 3),
    (errors.PeerFault("alpha", "broke it", code="bad-frame"), 4),
    (errors.RoundAborted("over"), 5),
    (errors.TransportError("did not arrive"), 6),
    (errors.GenerationError("no answer"), 7),
    (errors.InternalError("a bug"), 70),
    (ValueError("a private text"), 70),
    (FileNotFoundError(2, "No such file or directory", "here"), 2),
    (typer.BadParameter("no such choice"), 2),
    (OSError(28, "No space left on device", "here"), 75),
    (errors.MachineFault("here: no space left", "free space"), 75),
    (KeyboardInterrupt(), 130),
    (entry.Interruption("it goes on"), 130),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_error_has_its_exit_code_in_words_and_as_json(error, code, as_json, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["undersong", "plan", *(["--json"] if as_json else [])])

    def fail():
        raise error

    with pytest.raises(SystemExit) as ended:
        entry.run(fail)
    assert ended.value.code == code
    said = capsys.readouterr()
    assert said.err
    assert "private" not in said.err + said.out
    if not as_json or code == entry.INTERRUPTED:
        assert said.out == ""
        return
    told = json.loads(said.out)["error"]
    assert told["exit_code"] == code
    assert told["problem"]
    assert set(told) == {"problem", "remedy", "exit_code", "code"}
    of_the_system = {2: "unreadable", 28: "enospc"}
    unforeseen = {ValueError: "internal-error"}
    code_without_own = of_the_system.get(getattr(error, "errno", 0), unforeseen.get(type(error), ""))
    assert told["code"] == getattr(error, "code", code_without_own)


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (6, 6), ("words", 0)])
def test_what_a_command_returns_is_its_exit_code(returned, code):
    with pytest.raises(SystemExit) as ended:
        entry.run(lambda: returned)
    assert ended.value.code == code


@pytest.mark.heavy
@pytest.mark.parametrize("words", [["--frob"], ["coordinatr"], ["plan"], ["plan", "a", "b"], ["coordinator", "initt"]])
def test_every_command_line_error_is_of_the_class_that_is_caught(words):
    from undersong.cli import app

    with pytest.raises(entry.COMMAND_LINE_ERROR) as caught:
        app(words, standalone_mode=False)
    assert caught.value.exit_code == 2


@pytest.mark.heavy
@pytest.mark.parametrize("length", [1, 200_000])  # a short line waits in the buffer
def test_closed_standard_output_is_reported_in_one_line(length):
    program = f"from undersong_common.program import entry; entry.run(lambda: print('x' * {length}))"
    started = [sys.executable, "-c", program]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(started, env=buffered, **pipes) as process:
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(30) == entry.OUTPUT_CLOSED
    assert said.splitlines() == ["error: what reads the output has closed it"]


@pytest.mark.heavy
def test_command_whose_output_was_closed_at_the_start_runs_nothing(tmp_path):
    program = "from undersong_common.program import entry; entry.run(lambda: open('made', 'w').close())"
    shell = ["sh", "-c", f'"{sys.executable}" -c "{program}" >&-']
    done = subprocess.run(shell, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == entry.OUTPUT_CLOSED
    assert done.stderr.splitlines() == ["error: what reads the output has closed it"]
    assert not any(tmp_path.iterdir())


def test_programs_print_every_warning_to_standard_error():
    """The words of the programs that begin with their kind; what a rich console prints goes its own way."""
    warnings = []
    for path in (file for folder in processes.SOURCES[1:] for file in folder.rglob("*.py")):
        source = path.read_text("utf-8")
        if not re.search('"(?:error|warning|caution|remedy): ', source):
            continue
        calls = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        warnings += [call for call in calls if re.match("print\\(.{0,20}['\"](?:error|warning|caution|remedy): ", call)]
    assert len(warnings) >= 8
    assert [call for call in warnings if not call.endswith("file=sys.stderr)")] == []
