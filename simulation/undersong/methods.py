"""Names that a program imports to define a method of its own and to try it in a simulation (examples/voting.py).

``offer("NAME", Method(...))`` makes the method known to this process, for tasks with ``method.name = "NAME"``.
A package declares its method by an entry point instead, and every program knows it (docs/extending.md).
"""

from undersong_protocol.statistics import TopQVotes
from undersong_server.methods import offer
from undersong_server.methods.interface import Method, MethodOptions, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.selection import highest

__all__ = [
    "Method",
    "MethodOptions",
    "Order",
    "RunContext",
    "Sample",
    "Setting",
    "SumRequest",
    "TopQVotes",
    "highest",
    "offer",
]
