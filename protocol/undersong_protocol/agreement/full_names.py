"""Full names of hospitals, with their towns: words of the operator that a plan may state beside the parties' names."""

from collections.abc import Iterable, Mapping

from undersong_common.printable import name_fault, printable
from undersong_protocol.limits import LARGEST_PARTIES, check_size

TASK_KEY = "full_names"  # in a manifest's task, and in [federation] of a task file; left out where there is none
LONGEST_FULL_NAME = 200  # characters


def with_full_name(party: str, full_name: str) -> str:
    """Returns a hospital's name with its full name in brackets; the name alone for a full name of "".

    >>> with_full_name("stella-maris", "Stella Maris Hospital, Porto"), with_full_name("heart", "")
    ('stella-maris (Stella Maris Hospital, Porto)', 'heart')
    """
    printed_name = printable(party, 120)
    return f"{printed_name} ({printable(full_name, LONGEST_FULL_NAME)})" if full_name else printed_name


def stated_for(full_names: Mapping[str, str], parties: Iterable[str]) -> dict[str, str]:
    """Returns the full names of these parties, in their order; those that have none are left out."""
    return {party: full_names[party] for party in parties if full_names.get(party)}


def full_names_fault(full_names: object, parties: Iterable[str]) -> str:
    """Returns the reason why a plan may not state these full names for these parties; "" if it may.

    >>> full_names_fault({"heart": "Heart Institute, Porto"}, ["heart"]), full_names_fault({"lung": "Lung"}, ["heart"])
    ('', 'are stated for a party that takes no part')
    """
    if not isinstance(full_names, Mapping):
        return "are no table of names by party"
    check_size("full names in its manifest", len(full_names), LARGEST_PARTIES)
    if not full_names.keys() <= set(parties):
        return "are stated for a party that takes no part"
    faults = ((full_name, name_fault(full_name, LONGEST_FULL_NAME)) for full_name in full_names.values())
    return next((f"{printable(str(full_name), 60)!r} {fault}" for full_name, fault in faults if fault), "")
