"""Void certificates: proof that an attempt can never be opened, so that its slot in the plan may be used again."""

from __future__ import annotations

from collections.abc import Mapping

from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_common.printable import counted
from undersong_protocol.secagg.messages import parse_reply
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.transitions import Stage


def statements_needed(parameters: SumParameters) -> int:
    """The number of parties that must sign that they released nothing: more than n - T + c
    (docs/secagg.md, "Void attempts").

    With c of them lying, fewer than T parties can then have released shares; in direct mode at least one honest
    vector was never sent. On the k-regular graph a threshold T' counts neighbours, so it is asked besides that all
    releases together stay below what opening the at least n - D parties of the sum would take:
    (n - m + c) k < (n - D) T'.
    """
    n, c = parameters.size, parameters.colluders
    needed = n - parameters.threshold + c + 1
    if parameters.graph is not None and not parameters.direct:
        releasing = (parameters.quorum * parameters.graph.threshold - 1) // parameters.graph.degree
        needed = max(needed, n + c - releasing)
    return needed


def check_void_certificate(parameters: SumParameters, statements: Mapping[str, bytes]) -> None:
    """Raise PrivacyRefusal unless enough of ``statements`` {party: reply payload} are valid for this very attempt."""
    signed = 0
    problems: list[str] = []
    for name, payload in statements.items():
        try:
            body = parse_reply(parameters, name, payload, Stage.VOID).body
        except UndersongError as error:
            problems.append(str(error.args[0]).splitlines()[0])
            continue
        signed += not body
    needed = statements_needed(parameters)
    if signed < needed:
        signing = counted(signed, "party signs", "parties sign")
        raise PrivacyRefusal(
            f"{signing} that they released no share, {needed} are needed to call the attempt void"
            + "".join(f"; {problem}" for problem in problems),
            "use one of the plan's spare attempts, or stop the run",
            code="not-void",
        )


def is_void(parameters: SumParameters, statements: Mapping[str, bytes]) -> bool:
    """True if :func:`check_void_certificate` accepts ``statements``."""
    try:
        check_void_certificate(parameters, statements)
    except PrivacyRefusal:
        return False
    return True
