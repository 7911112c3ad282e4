"""Tracebacks for authors of methods and generators, which ``--debug`` shows where no private words can be in them.

A simulation handles the parties' records in the process that runs authors' code, and an error may carry a record. So
a traceback is shown only if all our frames in it, and in each error that led to it, are on the way from a command to
authors' code, and the innermost of them is one that hands public values only to it.
"""

import traceback
from collections.abc import Sequence

from undersong_common.errors import UndersongError, error_chain

PRODUCT_PACKAGES = ("undersong", "undersong_common", "undersong_protocol", "undersong_client", "undersong_server")
# Our modules that call authors' code, with public values only: prompts, opened sums, options.
CALLERS = (
    "undersong_server.generators",
    "undersong_server.methods",
    "undersong_server.operations.tasks",
    "undersong_server.runs.execution",
    "undersong_server.runs.planning",
)
# Our modules between a command and ``CALLERS``. No module that embeds, reads a table, answers for a party, evaluates or
# trains is among them.
WAY = (
    *CALLERS,
    "undersong.cli",
    "undersong.comparison.cell",
    "undersong.comparison.grid",
    "undersong.library.functions",
    "undersong.run.processes",
    "undersong.run.simulation",
    "undersong_common.program.entry",
    "undersong_common.program.options",
    "undersong_common.program.plugins",
    "undersong_server.cli",
)


def traceback_of(error: BaseException) -> str:
    """Returns the traceback of an error of an author's code with its message; "" if a private word could be in it.

    It is "" for an expected error of this program, too, unless another error caused it.
    """
    chain = error_chain(error)
    is_expected = all(
        isinstance(cause, UndersongError) and _modules_within(PRODUCT_PACKAGES, _frame_modules(cause)[-1:])
        for cause in chain
    )
    if is_expected or not all(map(_is_public, chain)):
        return ""
    return "".join(traceback.format_exception(error))


def _is_public(error: BaseException) -> bool:
    """Returns True if no frame of an error's traceback can hold private words.

    It is False for an error without frames, such as one of another process, and for a group of errors.
    """
    frame_modules = _frame_modules(error)
    product_modules = _modules_within(PRODUCT_PACKAGES, frame_modules)
    is_on_way = len(_modules_within(WAY, product_modules)) == len(product_modules) and bool(
        _modules_within(CALLERS, product_modules[-1:]) or not product_modules
    )
    return bool(frame_modules) and is_on_way and not isinstance(error, BaseExceptionGroup)


def _frame_modules(error: BaseException) -> list[str]:
    """Returns the names of the modules of an error's frames, the innermost last."""
    return [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]


def _modules_within(packages: Sequence[str], modules: Sequence[str]) -> list[str]:
    return [module for module in modules if any(f"{module}.".startswith(f"{package}.") for package in packages)]
