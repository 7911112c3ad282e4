"""Contacts of people, as the operator states them: one line, and a way to reach the person."""

from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable

LONGEST_STATED = 200  # characters of a name, or of a contact
FEWEST_DIGITS = 3  # of a telephone number, or of a postal address with house number and code


def stated_line(words: str) -> str:
    """Returns words as one line. Raises ConfigurationError for more than a sheet's line holds."""
    one_line = " ".join(words.split())
    if len(one_line) > LONGEST_STATED:
        raise ConfigurationError(
            f"{printable(one_line, 40)!r} has {len(one_line)} characters",
            f"write at most {LONGEST_STATED}",
            code="too-long",
        )
    return one_line


def reachable_contact(words: str) -> str:
    """Returns a contact as one line; "" for none.

    Raises ConfigurationError for one with neither a telephone number nor an address, by which nobody is reached.
    """
    contact = stated_line(words)
    if contact and "@" not in contact and sum(character.isdigit() for character in contact) < FEWEST_DIGITS:
        raise ConfigurationError(
            f"the contact {printable(contact, 60)!r} has no telephone number and no address",
            "add one, for example: Mara Holm, 0123 456 78",
            code="contact-unreachable",
        )
    return contact
