"""The first start of a coordinator: `coordinator serve` makes the folder where there is none."""

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_server import defaults, operations

if TYPE_CHECKING:
    from undersong_server.operations.coordinator import CoordinatorFacts

PORT = 7443  # of the address that is proposed


@dataclass(frozen=True, kw_only=True)
class FirstStart(defaults.NewCoordinator):
    """The settings of a coordinator that its first start makes; later starts may state them again.

    Attributes:
        addresses: empty where no option states one.
    """

    addresses: Annotated[Sequence[str], defaults.ADDRESS] = ()


def make_where_missing(home: Path, first: FirstStart, *, asks: bool) -> None:
    """Makes the coordinator's folder where ``home`` holds none, and prints its fingerprint.

    Args:
        asks: True asks for an address that ``first`` does not state, on a terminal.

    Raises ConfigurationError where an address is needed and nobody can be asked, or where ``first`` states settings
    that differ from those of the coordinator in ``home``.
    """
    if (home / "coordinator.json").exists():
        operations.coordinator.check_settings(home, first)
        return
    if not first.addresses and not asks:
        return  # The serving process reports that there is no coordinator.
    new = first if first.addresses else replace(first, addresses=(_ask_address(home),))
    for line in made_lines(home, operations.coordinator.create(home, new)):
        print(printable(line), flush=True)


def made_lines(home: Path, facts: "CoordinatorFacts") -> list[str]:
    """Returns the sentences about a coordinator that was just made."""
    return [
        f"made {home}; back it up by `undersong coordinator backup FILE`: it holds the keys",
        f"fingerprint: {facts.fingerprint}",
        "tell it to every hospital by telephone or on paper, never with the package",
        f"listens on {facts.bind}; hospitals reach it at {', '.join(facts.addresses)}",
        "listen elsewhere, with the same keys: undersong coordinator change --bind HOST:PORT",
    ]


def _ask_address(home: Path) -> str:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{home}: holds no coordinator",
            "make one by --address HOST:PORT, at which hospitals reach this machine, or name it with --home",
            code="no-coordinator",
        )
    print(f"{home}: holds no coordinator, so one is made")
    address_question = "host:port at which hospitals reach this machine"
    return str(typer.prompt(address_question, default=f"{socket.getfqdn()}:{PORT}"))
