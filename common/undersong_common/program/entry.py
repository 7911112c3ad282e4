"""Runs a command line: an error becomes one message and an exit code, never a traceback with values in it.

It also sets up gRPC, which reads its environment once: TLS 1.3 and nothing older, and the thread that reads sockets.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, NoReturn

import typer

from undersong_common.errors import ConfigurationError, InternalError, error_chain
from undersong_common.printable import encodable, json_text, printable_lines
from undersong_common.program import extras
from undersong_common.program.library_threads import one_thread_in_program
from undersong_common.program.machine import fault_of
from undersong_common.version import SOFTWARE

INTERRUPTED = 130
OUTPUT_CLOSED = 74  # sysexits.h, EX_IOERR
# Name of the codec error handler that prints characters which the output's encoding lacks as JSON escapes. A terminal
# or a file may know Latin-1 or ASCII alone, and a file's name may hold bytes that are no text.
ESCAPES = "undersong-escapes"
# Base class of all command-line errors. typer uses click or carries a copy of it, and exports only BadParameter. The
# highest class above BadParameter that has a method ``show`` is that base class.
COMMAND_LINE_ERROR: type[typer.BadParameter] = next(
    error_class for error_class in reversed(typer.BadParameter.__mro__) if hasattr(error_class, "show")
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(SOFTWARE)
        raise typer.Exit


HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}  # context settings of a program; its commands inherit them
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error in a method or a generator.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no advice.")]
ShowVersion = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
]


class Interruption(Exception):
    """Raised for Ctrl-C with a message about what continues in the background; the process then exits with code 130."""


def run(command: Callable[[], object], traceback_of: Callable[[BaseException], str] = lambda _error: "") -> NoReturn:
    """Runs ``command`` and exits the process with the number that the command returns, or 0 if it returns none.

    An error is printed in words on standard error and, where ``--json`` was asked for, as an object on standard output.

    Args:
        traceback_of: returns the traceback of an error for ``--debug``; "" for an error that may hold private words.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPES)
    try:
        _run_command(command, traceback_of)
    except KeyboardInterrupt:  # Ctrl-C may come while an error is being printed.
        _exit_interrupted()
    finally:
        # Ctrl-C that left code compiled from text, as dataclasses are, is marked as unhandled whoever handles it: under
        # ``python -m`` the interpreter then dies of SIGINT in place of the exit code. The next such code that ends well
        # removes the mark (CPython, pythonrun.c, run_eval_code_obj).
        exec("")  # noqa: S102


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Returns JSON escapes for characters that the output's encoding lacks, and the index of the next character."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(ESCAPES, _escaped)


def _run_command(command: Callable[[], object], traceback_of: Callable[[BaseException], str]) -> NoReturn:
    if sys.stdout is None:  # The next file that is opened would get descriptor 1, and prints would go into it.
        _output_closed()
    exit_code: object = 0
    try:
        _check_arguments(sys.argv[1:])
        with extras.named(), one_thread_in_program():
            exit_code = command()
            sys.stdout.flush()
        if exit_code == INTERRUPTED:  # The command line library turns Ctrl-C into this code.
            raise KeyboardInterrupt
    except COMMAND_LINE_ERROR as error:
        error.show()
        _print_json(error.format_message(), "see --help", error.exit_code)
        sys.exit(error.exit_code)
    except Interruption as interruption:
        print(printable_lines(str(interruption)), file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        _exit_interrupted()
    except Exception as error:  # noqa: BLE001 - its message may hold private text, so only its kind and place are shown
        if _is_interrupt(error):
            _exit_interrupted()
        if isinstance(error, BrokenPipeError):
            _output_closed()
        worded_error = fault_of(error)  # It may name a file, but no file of this program has private data in its name.
        error_fields = (worded_error.problem, worded_error.remedy, worded_error.exit_code, worded_error.code)
        with suppress(OSError):  # what is printed may go to the full disk of which the error speaks
            _print_json(*error_fields, worded_error.report)
        with suppress(OSError):
            print(printable_lines(f"error: {worded_error}"), file=sys.stderr)
            _show_traceback(traceback_of(error))
        sys.exit(worded_error.exit_code)
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raises ConfigurationError for an argument that is no text, such as a file's name of undecodable bytes.

    No setting, report or signature could hold it.
    """
    for argument_number, argument in enumerate(arguments, start=1):
        if encodable(argument) != argument:
            raise ConfigurationError(
                f"argument {argument_number} of the command holds bytes that are no text in"
                f" {sys.getfilesystemencoding()}",
                "rename the file or folder that it names, or set the locale in which its name was written",
                code="argument",
            )


def _show_traceback(traceback: str) -> None:
    """Shows an author's traceback if ``--debug`` was given, else how to see it."""
    if traceback and "--debug" in sys.argv[1:]:
        print(printable_lines(traceback), file=sys.stderr)
    elif traceback:
        print("its traceback: the same command with --debug", file=sys.stderr)


def _print_json(
    problem: str, remedy: str, exit_code: int, code: str = "", report: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Prints the error as JSON for the next program, if ``--json`` was given."""
    if "--json" in sys.argv[1:]:
        error_json = {"problem": problem, "remedy": remedy, "exit_code": exit_code, "code": code}
        print(json_text({**report, "error": error_json}), flush=True)


def _exit_interrupted() -> NoReturn:
    print("stopped; nothing is lost: the same command continues", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _output_closed() -> NoReturn:
    """Ends the program after its output's reader has closed the pipe; buffered output raises no second error."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print("error: what reads the output has closed it", file=sys.stderr)
    sys.exit(OUTPUT_CLOSED)


def _is_interrupt(error: BaseException) -> bool:
    """Returns True if Ctrl-C caused an error: during an import, Python and libraries wrap it in other errors."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in error_chain(error))


# A suite of TLS 1.2 names the kind of the server's key. This one needs RSA, and no certificate here has an RSA key, so
# that client and server can agree on TLS 1.3 only.
CIPHER_SUITES = "ECDHE-RSA-AES256-GCM-SHA384"

# By default threads of gRPC's event engine read the sockets and then wake the thread that hands messages to Python.
# Without these two experiments that thread reads the sockets itself. A later gRPC without them uses its default.
POLLING = "-event_engine_client,-event_engine_listener"


def only_tls_1_3() -> None:
    """Makes gRPC refuse every TLS version before 1.3; call it before gRPC is imported.

    Raises InternalError if gRPC was imported already.
    """
    if "grpc" in sys.modules:
        raise InternalError("gRPC was imported before TLS was set up")
    os.environ["GRPC_SSL_CIPHER_SUITES"] = CIPHER_SUITES
    os.environ.setdefault("GRPC_EXPERIMENTS", POLLING)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a refused handshake is logged once, in words, by whoever dialled
