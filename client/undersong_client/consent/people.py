"""People of the hospital who decide about plans, with name, role and comment."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError
from undersong_common.pages.duties import AT_THE_TERMINAL, Duties, provider_identity, terminal_identity
from undersong_common.pages.store import PAGE_FILE, PageStore
from undersong_common.printable import name_fault, printable
from undersong_common.program.owner import caller_at_terminal

Decision = Literal["pending", "approved", "rejected", "revoked"]
ROLES = ("privacy officer", "IT", "management", "other")
ROLES_OF_TWO = ("privacy officer", "IT")  # each approves, where a policy asks for two people
LONGEST_PERSON, LONGEST_COMMENT = 80, 2_000  # characters


LOG_INS = {
    "provider": "logged in by the organisation",
    "password": "logged in by a password",
    "link": "logged in by a link",
    "terminal": "at a terminal of this machine",
}


@dataclass(frozen=True)
class Person:
    """A person who decides.

    Attributes:
        name: name that the person gave.
        role: one of ``ROLES``.
        comment: comment that the person gave.
        account: name of the person's account on the page, or of the machine's account at its terminal.
        log_in: kind of the log-in, one of ``LOG_INS``; "" in files of earlier versions.
        issuer, subject: the identity provider, and its key of the person who logged in by it; "" otherwise.
        role_from: who gave the role; "" if the person stated it, which counts for nothing under the rule of two.
        let_in_by: identity of whoever let the account in by a link within the last day; "" if nobody did.
    """

    name: str
    role: str = "other"
    comment: str = ""
    account: str = ""
    log_in: str = ""
    issuer: str = ""
    subject: str = ""
    role_from: str = ""
    let_in_by: str = ""

    def __post_init__(self) -> None:
        name_problem = name_fault(self.name, LONGEST_PERSON)
        comment_length = len(self.comment)
        ConfigurationError.raise_first(
            (name_problem, f"the name of who decides {name_problem}", "state your name", "no-name"),
            (self.role not in ROLES, f"role {self.role!r} is unknown", f"choose among {', '.join(ROLES)}", ""),
            (
                comment_length > LONGEST_COMMENT,
                f"the comment has {comment_length} characters",
                f"use at most {LONGEST_COMMENT}",
                "long-comment",
            ),
        )

    @property
    def accounts(self) -> frozenset[str]:
        """The account of the page or of the machine, and the provider's."""
        return frozenset(filter(None, (self.account, provider_identity(self.issuer, self.subject))))

    @property
    def identities(self) -> frozenset[str]:
        """Everything by which this person could be the same as another one."""
        return self.accounts | frozenset(filter(None, (self.let_in_by,)))

    @property
    def known_by(self) -> str:
        """Returns in words how this person is known: the account, the kind of log-in, and where the role came from."""
        if self.log_in == "terminal":
            account_name = self.account.removesuffix(AT_THE_TERMINAL)
        else:
            account_name = self.account
        account_words = (
            f"account {account_name}" if account_name else "",
            LOG_INS.get(self.log_in, ""),
            f"{self.subject} at {self.issuer}" if self.issuer else "",
            f"role given by {self.role_from}" if self.role_from else "",
        )
        return printable(", ".join(filter(None, account_words)), LONGEST_COMMENT)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values; files of earlier versions, and their signatures, lack the empty ones."""
        return {
            field_name: field_value
            for field_name, field_value in asdict(self).items()
            if field_value or field_name not in _ADDED
        }


_ADDED = ("log_in", "issuer", "subject", "role_from", "let_in_by")  # Files of version 0.3 lack these fields.


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

    def words(self, time_words: str) -> str:
        """Returns the decision and the person in one line; ``time_words`` is the time in words."""
        comment_words = ""
        if self.comment:
            comment_words = f': "{printable(self.comment, LONGEST_COMMENT)}"'
        identity_words = ""
        if self.known_by:
            identity_words = f" ({self.known_by})"
        return f"{self.decision} by {self.name}, {self.role}, {time_words}{identity_words}{comment_words}"


def check_another(earlier_approvers: Sequence[Person], person: Person, roles: Sequence[str]) -> None:
    """Raises ConfigurationError unless this person may approve too, after ``earlier_approvers``."""
    if roles and person.role not in roles:
        raise ConfigurationError(
            f"your policy asks for the approval of {' and '.join(roles)}; your role is {person.role}",
            "have people with these roles approve",
            code="other-role",
        )
    for earlier_approver in earlier_approvers if roles else ():
        if earlier_approver.role == person.role or earlier_approver.name.casefold() == person.name.casefold():
            problem = "your policy asks for two people"
        elif shared_identities := earlier_approver.identities & person.identities:
            problem = f"{printable(sorted(shared_identities)[0])} stands behind both of you, who count as one person"
        elif bool(earlier_approver.let_in_by) != bool(person.let_in_by):
            # The other of the two may have made that link at a terminal, and would then hold both accounts.
            opener_name = printable(earlier_approver.let_in_by or person.let_in_by)
            problem = f"{opener_name} let one of you in within the last day, and may be the other one"
        elif (earlier_approver.log_in == "terminal") != (person.log_in == "terminal"):
            problem = "an account of the page and one of the machine may be the same person's"
        else:
            continue
        raise ConfigurationError(
            f"{earlier_approver.name}, {earlier_approver.role}, has approved; {problem}",
            "have another person approve, from an account of their own, where the first one did",
            code="same-person",
        )


@contextmanager
def duties(home: PartyHome) -> Iterator[Duties]:
    """Opens the table of duties (the roles that were given to accounts) of a party's page, and closes it at the end."""
    page_store = PageStore(home.page)
    try:
        yield Duties(page_store)
    finally:
        page_store.close()


def person_of_terminal(home: PartyHome, name: str = "", role: str = "other", comment: str = "") -> Person:
    """Returns the person who types this command: an account of the machine, with the duty that was given to it."""
    account, page_duty = terminal_identity(), None
    if (home.page / PAGE_FILE).exists():
        with duties(home) as party_duties:
            page_duty = party_duties.of(account)
    return Person(
        name or caller_at_terminal().name,
        role if page_duty is None else page_duty.name,
        comment,
        account=account,
        log_in="terminal",
        role_from="" if page_duty is None else page_duty.source,
    )


def note_decision(home: PartyHome, action: str, subject: str, person: Person | None) -> None:
    """Writes a decision to the log of the page, wherever it was taken, with whoever took it and how they were known."""
    from undersong_common.pages.store import FILE_NAME, AuditLog

    account_name = "terminal" if person is None else person.account or "terminal"
    identity_words = ""
    if person is not None and person.known_by:
        identity_words = f" ({person.known_by})"
    AuditLog(home.page / FILE_NAME).note(account_name, action, f"{subject}{identity_words}")


def remedy_of_refusal(check_remedies: Sequence[str], operator: str) -> str:
    """Returns the remedy for a run that the policy's checks refuse: what to ask of the operator.

    Args:
        check_remedies: remedies of the checks that refuse the run.
        operator: the operator with a contact, in words.
    """
    request_words = "; ".join(dict.fromkeys(change_words for change_words in check_remedies if change_words))
    return f"ask {operator}: {request_words or 'plan the run within the bounds of this hospital'}"
