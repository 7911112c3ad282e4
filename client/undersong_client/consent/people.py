"""People of the hospital who decide about plans, with name, role and comment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from undersong_common.errors import ConfigurationError
from undersong_common.printable import name_fault, printable, shell_word

Decision = Literal["pending", "approved", "rejected", "revoked"]
ROLES = ("privacy officer", "IT", "management", "other")
ROLES_OF_TWO = ("privacy officer", "IT")  # each approves, where a policy asks for two people
LONGEST_PERSON, LONGEST_COMMENT = 80, 2_000  # characters


@dataclass(frozen=True)
class Person:
    """A person who decides.

    Attributes:
        name: name that the person gave.
        role: one of ``ROLES``.
        comment: comment that the person gave.
        account: name of the person's account on the page; "" for a person at a terminal.
    """

    name: str
    role: str = "other"
    comment: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        fault, length = name_fault(self.name, LONGEST_PERSON), len(self.comment)
        ConfigurationError.raise_first(
            (fault, f"the name of who decides {fault}", "state your name", "no-name"),
            (self.role not in ROLES, f"role {self.role!r} is unknown", f"choose among {', '.join(ROLES)}", ""),
            (
                length > LONGEST_COMMENT,
                f"the comment has {length} characters",
                f"use at most {LONGEST_COMMENT}",
                "long-comment",
            ),
        )


@dataclass(frozen=True)
class PersonalDecision(Person):
    """A person's decision about a plan.

    Attributes:
        at_s: time, seconds since the epoch.
        sheet: hash (hex) of the sheet that the person read; "" if none was read.
    """

    decision: Decision = "pending"
    at_s: float = 0.0
    sheet: str = ""

    def words(self, at: str) -> str:
        """Returns the decision and the person in one line; ``at`` is the time in words."""
        comment = f': "{printable(self.comment, LONGEST_COMMENT)}"' if self.comment else ""
        return f"{self.decision} by {self.name}, {self.role}, {at}{comment}"


def check_another(approved: Sequence[Person], person: Person, roles: Sequence[str]) -> None:
    """Raises ConfigurationError unless this person may add an approval to the ``approved`` ones."""
    if roles and person.role not in roles:
        raise ConfigurationError(
            f"your policy asks for the approval of {' and '.join(roles)}; your role is {person.role}",
            "have them approve",
            code="other-role",
        )
    if any(
        each.role == person.role
        or each.name.casefold() == person.name.casefold()
        or (each.account and each.account == person.account)
        for each in approved
        if roles
    ):
        raise ConfigurationError(
            f"{approved[0].name}, {approved[0].role}, has approved; your policy asks for two people",
            "have the other one approve, from an account of their own",
            code="same-person",
        )


def remedy_of_refusal(run: str) -> str:
    """Returns the remedies of this party and the operator for a run that the policy's checks refuse."""
    return (
        "raise the bound here (undersong-party budget set, or policy set) and have the operator ask again (undersong"
        f" run resume {shell_word(run)}), or have it planned within your bounds (undersong run plan --revises"
        f" {shell_word(run)} --name NEW --set KEY=VALUE, for example --set privacy.delta=1e-6)"
    )
