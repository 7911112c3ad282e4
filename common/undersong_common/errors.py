"""Exception classes, one for each thing that a caller may do about an error.

Every error names the field, party, round or file at fault and the remedy. None ever carries private text, an
embedding or a clean vector: messages are built from public names, counts and positions only.

``code`` names a failure for programs and tests, in lower-case words with hyphens (``"ledger-in-use"``); "" if unnamed.
It stays the same when the sentence changes. Nobody reads it on a screen; errors as JSON and log records carry it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OPTION = re.compile(r"(?<![\w/.-])--[a-z]+(?:-[a-z]+)*")


def named_options(remedy: str) -> set[str]:
    """Returns the command-line options that a remedy names; two hyphens within a file's name begin none.

    >>> sorted(named_options("move /notes/a--b.csv, or choose: --sheet NAME, --hold-out 10"))
    ['--hold-out', '--sheet']
    """
    return set(OPTION.findall(remedy))


def error_chain(error: BaseException) -> list[BaseException]:
    """Returns an error, its ``__cause__`` and ``__context__``, the cause and context of these, and so on."""
    chain = [error]
    for error_in_chain in chain:
        chain += [
            cause
            for cause in (error_in_chain.__cause__, error_in_chain.__context__)
            if cause is not None and cause not in chain
        ]
    return chain


class UndersongError(Exception):
    """Base of every expected failure. ``exit_code`` is the process's exit status if the error ends the program.

    >>> error = UndersongError("notes.csv: no such file", "check the path", code="no-file")
    >>> error.remedy, error.code
    ('check the path', 'no-file')
    """

    exit_code = 1
    report: Mapping[str, Any] = {}
    """Figures that the command had counted before it failed; ``--json`` prints them beside the error."""

    def __init__(self, problem: str, remedy: str = "", *, code: str = "", told: str = "") -> None:
        """``told`` is what a peer reads in place of ``problem``, if that names an amount which no peer may learn."""
        super().__init__(problem if not remedy else f"{problem}\n  remedy: {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.code = code
        self.told = told or problem

    @classmethod
    def raise_first(cls, *faults: tuple[object, str, str, str]) -> None:
        """Raises the first of ``faults``, each (condition, problem, remedy, code), whose condition is true, if any."""
        for is_present, problem, remedy, code in faults:
            if is_present:
                raise cls(problem, remedy, code=code)


class ConfigurationError(UndersongError):
    """The configuration, the command line or an input file is wrong: fix it, then run again.

    ``places`` maps the path of each faulty key ("privacy.epsilon") to its problem, so that a form can show it.
    """

    exit_code = 2
    places: Mapping[str, str] = {}

    @classmethod
    def together(cls, faults: Sequence[tuple[str, ...]], *, code: str = "") -> "ConfigurationError":
        """Returns one error that lists all ``faults``.

        Args:
            faults: each (problem, remedy) or (problem, remedy, path of the key at fault).
        """
        remedies = filter(None, dict.fromkeys(remedy for _, remedy, *_ in faults))
        error = cls("\n".join(problem for problem, *_ in faults), "; ".join(remedies), code=code)
        error.places = {place: f"{problem}; {remedy}" for problem, remedy, *places in faults for place in places}
        return error

    @classmethod
    def raise_together(cls, faults: Iterable[tuple[str, ...]], *, code: str = "") -> None:
        """Raises the error that :meth:`together` makes of ``faults``; does nothing if there are none."""
        if fault_list := list(faults):
            raise cls.together(fault_list, code=code)


class MissingRights(ConfigurationError):
    """This account lacks the rights to a file or folder that a program needs, or others have them too."""


class PrivacyRefusal(UndersongError):
    """Going on would spend unapproved budget or break a bound: stop, and never retry without a change."""

    exit_code = 3


class PeerFault(UndersongError):
    """A peer broke the protocol: drop that peer, whom ``party`` names."""

    exit_code = 4

    def __init__(self, party: str, problem: str, remedy: str = "", *, code: str = "") -> None:
        super().__init__(f"{party}: {problem}", remedy, code=code)
        self.party = party


class RoundAborted(UndersongError):
    """This attempt is over and nothing was opened; a new attempt needs fresh keys, noise and shares."""

    exit_code = 5


class TransportError(UndersongError):
    """A message did not arrive; sending the same bytes again is safe."""

    exit_code = 6


class GenerationError(UndersongError):
    """A generator gave no usable answer; the sample is skipped or the run stops with nothing lost."""

    exit_code = 7


class MachineFault(UndersongError):
    """The machine lacks something (room, inodes, descriptors, memory, a mounted folder): try again once it is there.

    ``undersong_common.program.machine`` makes it from the number of the system's error.
    """

    exit_code = 75


class InternalError(UndersongError):
    """Our bug: an invariant of this program does not hold. Please report it."""

    exit_code = 70
