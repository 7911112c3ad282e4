"""Contacts of people, as the operator states them: one line, and a way to reach the person."""

import re
from collections.abc import Iterator, Mapping

from undersong_common.errors import ConfigurationError
from undersong_common.printable import name_fault, printable
from undersong_protocol.agreement.full_names import LONGEST_FULL_NAME

LONGEST_STATED = 200  # characters of a name, or of a contact
FEWEST_DIGITS = 3  # of a telephone number, or of a postal address with house number and code
_MAIL_ADDRESS = re.compile(r"[^\s@]+@[^\s@.]+(\.[^\s@.]+)+")
_WEB_ADDRESS = re.compile(r"(https?://|www\.)[^\s./]+(\.[^\s./]+)+", re.IGNORECASE)
REHEARSAL = "a rehearsal with invented records"  # who asks in a drill whose operator has given no name
CONTACT_REMEDY = "write an e-mail address, a telephone number or a web address, for example: Mara Holm, 0123 456 78"


def stated_line(words: str) -> str:
    """Returns words as one line. Raises ConfigurationError if they are too long for a line of a sheet."""
    one_line = " ".join(words.split())
    if len(one_line) > LONGEST_STATED:
        raise ConfigurationError(
            f"{printable(one_line, 40)!r} is too long: it has {len(one_line)} characters",
            f"write at most {LONGEST_STATED} characters",
            code="too-long",
        )
    return one_line


def full_name_line(words: str) -> str:
    """Returns a hospital's full name and town as one line; "" for none.

    Raises ConfigurationError for one that is too long, or that has a character that cannot be seen.
    """
    full_name = stated_line(words)
    if full_name and (fault := name_fault(full_name, LONGEST_FULL_NAME)):
        raise ConfigurationError(
            f"the full name {printable(full_name, 60)!r} {fault}",
            "write name and town, for example: Stella Maris Hospital, Porto",
            code="full-name",
        )
    return full_name


def reachable_contact(words: str) -> str:
    """Returns a contact as one line; "" for none.

    Raises ConfigurationError for one with neither a telephone number nor an address, by which nobody is reached.
    """
    contact = stated_line(words)
    if contact and not _is_reachable(contact):
        raise ConfigurationError(_unreachable_words(contact), CONTACT_REMEDY, code="contact-unreachable")
    return contact


def contact_faults(contacts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields (problem, remedy, key) for each stated contact of a task by which nobody is reached.

    Args:
        contacts: words by the key that states them, such as "publication.contact"; "" where the task states none.
    """
    for key, words in contacts.items():
        if words not in ("", REHEARSAL) and not _is_reachable(words):
            yield f"{key}: {_unreachable_words(words)}", f"{key}: {CONTACT_REMEDY}", key


def _is_reachable(contact: str) -> bool:
    digit_count = sum(character.isdigit() for character in contact)
    return bool(digit_count >= FEWEST_DIGITS or _MAIL_ADDRESS.search(contact) or _WEB_ADDRESS.search(contact))


def _unreachable_words(contact: str) -> str:
    if not contact.strip():
        return "the contact is blank"
    return f"the contact {printable(contact, 60)!r} has no telephone number and no address"
