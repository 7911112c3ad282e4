"""The rule of two people: who may be one of the two, and the wish of the first one to loosen the policy.

The two are persons of the identity provider where the hospital's page has one. Otherwise they are two accounts of the
page, or two accounts of the machine at a terminal. PRIVACY.md, "Who decides".
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature

from undersong_client import keys
from undersong_client.consent import policy_file
from undersong_client.consent.people import ROLES, ROLES_OF_TWO, Person, check_another, duties
from undersong_client.consent.policy import HospitalPolicy, loosened
from undersong_client.consent.policy import read as read_policy
from undersong_client.home import PartyHome, read_json, write_json
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.pages.duties import DAY_S, Duties, issuer_form, terminal_identity
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_common.printable import printable
from undersong_common.program.owner import ROOT_UID, caller_at_terminal, namespace_doubt
from undersong_common.program.uptime import Instant, instant

WISH_FILE = "wish.json"
TAG = "undersong wish"
OWN_ACCOUNT = "type it from an account of your own, by sudo -u"


class WaitsForSecondPerson(PrivacyRefusal):
    """The first of two people has asked for a looser policy; nothing is changed until a second one asks for it too."""

    def __init__(self, changes: Sequence[str]) -> None:
        super().__init__(
            f"nothing is changed yet: the change loosens the policy ({'; '.join(changes)}), which asks for two people",
            "have the other one choose the same within a day",
            code="second-person",
        )


def check_namespace(home: PartyHome) -> None:
    """Raises PrivacyRefusal if two people decide and this process runs in a namespace of its own (a container)."""
    namespace_problem = namespace_doubt()
    if namespace_problem and read_policy(home).two_people:
        raise PrivacyRefusal(
            f"the rule of two people counts a day by the machine's uptime, and {namespace_problem}",
            "start this command outside a container, or in one that root runs",
            code="not-identified",
        )


def giver_at_terminal() -> str:
    """Returns the identity of whoever types this command, who gives a role.

    Raises PrivacyRefusal if nobody can tell who it is.
    """
    if caller_problem := caller_at_terminal().doubt:
        raise PrivacyRefusal(
            f"nobody can tell who gives this role: {caller_problem}",
            f"{OWN_ACCOUNT}, or give it on the page",
            code="not-identified",
        )
    return terminal_identity()


def give_duty(home: PartyHome, account: str, duty: str, *, by: Sequence[str]) -> None:
    """Gives an account its role under the rule of two; takes it away if ``duty`` is "".

    Args:
        account: of the page, or of the machine (``undersong_common.pages.duties.AT_THE_TERMINAL``).
        by: identities of the person who gives it, who may be neither of the two for a day.

    Raises ConfigurationError for an unknown role, or where the person gives it to themselves.
    """
    if duty and duty not in ROLES:
        raise ConfigurationError(f"role {duty!r} is unknown", f"choose among {', '.join(ROLES)}", code="unknown-role")
    if duty and account in by:
        raise ConfigurationError(
            "nobody gives a role of the rule of two to themselves", "have another one give it", code="own-role"
        )
    with duties(home) as party_duties:
        party_duties.give(account, duty, source=f"the administrator {by[0]}", by=by)


def check_one_of_two(home: PartyHome, person: Person, deciders: Sequence[Person]) -> None:
    """Raises an error unless a person may be one of the two, beside the ``deciders`` who have decided so already.

    It also raises PrivacyRefusal if the page's log, which shows who has given rights to whom, was changed.
    """
    if person.log_in != "terminal":  # A page may have been started before two people decided.
        check_namespace(home)
    AuditLog(home.page / FILE_NAME).entries()
    with duties(home) as party_duties:
        issuer = party_duties.issuer
        for one_of_two in (person, *deciders):
            if issuer and (one_of_two.log_in != "provider" or issuer_form(one_of_two.issuer) != issuer):
                raise PrivacyRefusal(
                    f"the rule of two people counts people of your organisation, and {one_of_two.account!r} is none",
                    "log in to the page with your organisation",
                    code="not-identified",
                )
        if not issuer and not person.log_in:
            raise PrivacyRefusal(
                "the rule of two people counts accounts of people, and this request comes from none",
                f"log in to the page, or {OWN_ACCOUNT}",
                code="not-identified",
            )
        if person.log_in == "terminal":
            _check_caller()
        if not person.role_from:
            raise ConfigurationError(
                f"{person.account!r} has no role under the rule of two: a role that you state yourself counts for"
                " nothing",
                f"have another person give it: undersong-party policy duty {person.account.partition(' ')[0]}"
                f" {json.dumps(ROLES_OF_TWO[0])}{' --terminal' if person.log_in == 'terminal' else ''}",
                code="no-duty",
            )
        for one_of_two in (person, *deciders):
            _check_gave_nothing(party_duties, one_of_two)
    check_another(deciders, person, ROLES_OF_TWO)


def _check_caller() -> None:
    """Raises PrivacyRefusal unless the account from which this command was typed is one person's."""
    terminal_caller = caller_at_terminal()
    if terminal_caller.uid == ROOT_UID or terminal_caller.doubt:
        raise PrivacyRefusal(
            f"the rule of two people counts accounts of people, and {terminal_caller.name} is none here:"
            f" {terminal_caller.doubt or 'anybody may be behind root'}",
            f"log in to the page, or {OWN_ACCOUNT}",
            code="not-identified",
        )


def _check_gave_nothing(party_duties: Duties, decider: Person) -> None:
    """Raises PrivacyRefusal if this person has given somebody rights within a day, or may have."""
    # Whoever let the account in is excluded, and not the person who was let in.
    duty_exclusion = party_duties.exclusion(decider.accounts)
    if duty_exclusion is None:
        return
    time_words = time.strftime("%Y-%m-%d %H:%M", time.localtime(duty_exclusion.until_s))
    actor_name = printable(duty_exclusion.actor)
    exclusion_words = (
        "is none of the two" if duty_exclusion.is_own else "may be anybody here. Nobody here is one of the two"
    )
    raise PrivacyRefusal(
        f"{actor_name} has given rights to an account, and {exclusion_words} before {time_words}",
        "have two others decide, or wait until then",
        code="gave-rights",
    )


# The names below serve the loosening of rules, which takes two people.


@dataclass(frozen=True)
class Wish:
    """The wish of the first of two people for a looser policy.

    Attributes:
        change: hash (hex) of the policy as it was and as it shall be, and of the log's entry about the one as it was.
        at_s: time, seconds since the epoch.
        boot, up: the machine's uptime then (``undersong_common.program.uptime``).
    """

    change: str
    person: Person
    at_s: float
    boot: str
    up: float

    @property
    def statement(self) -> bytes:
        """Returns the bytes that the wish's signature covers."""
        return tagged_hash(TAG, canonical_json(list(self.to_json().values())))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, in the order in which they are signed."""
        return {
            "change": self.change,
            "person": self.person.to_json(),
            "at_s": self.at_s,
            "boot": self.boot,
            "up": self.up,
        }


def pending_wish(home: PartyHome) -> Wish | None:
    """Returns the wish that waits for a second person; None if there is none, or if it is older than a day.

    A wish that this party's key has not signed does not count. The day is counted by the machine's uptime too, so that
    no change of the clock makes an old wish a new one. A wish that lies ahead of now was stored while the clock was
    wrong, and does not count either.
    """
    path = home.page / WISH_FILE
    if not path.exists():
        return None
    try:
        wish_json = read_json(path)
        wisher = Person(**wish_json["person"])
        wish_times = (float(wish_json["at_s"]), str(wish_json["boot"]), float(wish_json["up"]))
        stored_wish = Wish(str(wish_json["change"]), wisher, *wish_times)
        keys.identity(home).public_key().verify(bytes.fromhex(wish_json["signature"]), stored_wish.statement)
    except (TypeError, KeyError, ValueError, InvalidSignature):
        return None
    passed_s = Instant(stored_wish.at_s, stored_wish.boot, stored_wish.up).passed_s(instant(time.time))
    return stored_wish if 0 <= passed_s < DAY_S else None


def check_loosening(
    home: PartyHome, policy_before: HospitalPolicy, policy_after: HospitalPolicy, person: Person | None
) -> None:
    """Raises an error unless a policy may be changed so by this person now.

    A policy that asks for two people is loosened by two, each of whom could approve a run with the other. Raises
    WaitsForSecondPerson for the first of them.
    """
    signed_entry = policy_file.last_signed(home)
    loosened_rules = loosened(policy_before, policy_after) if policy_before.two_people else ()
    if signed_entry is not None and signed_entry.digest != policy_file.digest_of(
        policy_file.read_fields(home, latest=False)
    ):
        # Nothing tells what the last policy was, so that any other one may be looser.
        loosened_rules = ("the policy that was signed last -> another one",) if signed_entry.two_people else ()
    if not loosened_rules:
        (home.page / WISH_FILE).unlink(missing_ok=True)
        return
    if person is None:
        raise PrivacyRefusal(
            f"the change loosens the policy ({'; '.join(loosened_rules)}), which asks for two people",
            "change it on the page, or by undersong-party policy set",
            code="not-identified",
        )
    # With the log's entry, a wish holds for this change once: another such change has another entry before it.
    signed_state = "" if signed_entry is None else signed_entry.entry
    change_hash = hashlib.sha256(
        canonical_json([policy_before.to_json(), policy_after.to_json(), signed_state])
    ).hexdigest()
    stored_wish = pending_wish(home)
    earlier_deciders: tuple[Person, ...] = ()
    if stored_wish is not None and stored_wish.change == change_hash:
        earlier_deciders = (stored_wish.person,)
    is_again = any(earlier_decider.account == person.account for earlier_decider in earlier_deciders)
    check_one_of_two(home, person, () if is_again else earlier_deciders)
    if earlier_deciders and not is_again:
        (home.page / WISH_FILE).unlink(missing_ok=True)
        return
    home.page.mkdir(parents=True, exist_ok=True, mode=0o700)
    now_instant = instant(time.time)
    first_wish = Wish(change_hash, person, now_instant.at, now_instant.boot, now_instant.up)
    signature = keys.identity(home).sign(first_wish.statement).hex()
    write_json(home.page / WISH_FILE, {**first_wish.to_json(), "signature": signature})
    raise WaitsForSecondPerson(loosened_rules)
