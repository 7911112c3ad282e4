"""The order of the protocol as tables: the requests that a party answers in each phase, and the coordinator's rounds.

The machines look rules up here, and the site's page docs/secagg.md shows the tables.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Stage(IntEnum):
    """A round of messages; the values are those in secagg.proto."""

    ADVERTISE = 1
    REVEAL = 2
    SHARE = 3
    MASK = 4
    CONSISTENCY = 5
    UNMASK = 6
    VOID = 7

    @property
    def title(self) -> str:
        """Name of the round in messages to people."""
        return _TITLES[self]


_TITLES = {
    Stage.ADVERTISE: "advertise keys",
    Stage.REVEAL: "reveal coins",
    Stage.SHARE: "share keys",
    Stage.MASK: "masked input",
    Stage.CONSISTENCY: "consistency",
    Stage.UNMASK: "unmask",
    Stage.VOID: "void statement",
}


class Phase(IntEnum):
    """State of a party in an attempt: the last request that it answered."""

    OPENED = 0
    ADVERTISED = 1
    REVEALED = 2
    SHARED = 3
    MASKED = 4
    CONSISTENT = 5
    DONE = 6
    TOMBSTONED = 7


@dataclass(frozen=True)
class PartyRule:
    """Rule for a party: in ``phase`` it answers a valid request for ``stage``, and is then in the phase ``then``.

    Attributes:
        traits: words of the mode (``SumParameters.traits``) that all must hold for the rule to apply.
        charged: True if the ledger must be charged before this reply.
        releases: True if the attempt can no longer become void after this reply.
        erases: names of the secrets that are erased after this reply.
    """

    phase: Phase
    stage: Stage
    then: Phase
    traits: str = ""
    charged: bool = False
    releases: bool = False
    erases: tuple[str, ...] = ()


# Secrets a party draws once, at the start; docs/secagg.md says what each is for.
SECRETS = ("channel", "mask", "self_mask", "noise_own", "noise_root", "nonce", "sharing", "channel_kem")
_NEEDED_UNTIL_SHARE = ("channel", "nonce", "sharing")
_NEEDED_UNTIL_MASK = ("mask", "self_mask", "noise_own", "channel_kem")


PARTY_RULES: tuple[PartyRule, ...] = (
    PartyRule(Phase.OPENED, Stage.ADVERTISE, Phase.ADVERTISED),
    PartyRule(Phase.ADVERTISED, Stage.REVEAL, Phase.REVEALED, "graph"),
    PartyRule(Phase.REVEALED, Stage.REVEAL, Phase.REVEALED, "graph"),
    PartyRule(Phase.ADVERTISED, Stage.SHARE, Phase.SHARED, "complete shares", erases=_NEEDED_UNTIL_SHARE),
    PartyRule(Phase.REVEALED, Stage.SHARE, Phase.SHARED, "graph shares", erases=_NEEDED_UNTIL_SHARE),
    PartyRule(Phase.ADVERTISED, Stage.SHARE, Phase.SHARED, "complete direct hybrid", erases=_NEEDED_UNTIL_SHARE),
    PartyRule(Phase.REVEALED, Stage.SHARE, Phase.SHARED, "graph direct hybrid", erases=_NEEDED_UNTIL_SHARE),
    PartyRule(Phase.SHARED, Stage.MASK, Phase.MASKED, "shares", charged=True, erases=_NEEDED_UNTIL_MASK),
    PartyRule(Phase.SHARED, Stage.MASK, Phase.MASKED, "direct hybrid", charged=True, releases=True, erases=SECRETS),
    PartyRule(
        Phase.ADVERTISED,
        Stage.MASK,
        Phase.MASKED,
        "complete direct classical",
        charged=True,
        releases=True,
        erases=SECRETS,
    ),
    PartyRule(
        Phase.REVEALED, Stage.MASK, Phase.MASKED, "graph direct classical", charged=True, releases=True, erases=SECRETS
    ),
    PartyRule(Phase.MASKED, Stage.CONSISTENCY, Phase.CONSISTENT, "shares"),
    PartyRule(Phase.MASKED, Stage.CONSISTENCY, Phase.DONE, "direct", erases=SECRETS),
    PartyRule(Phase.CONSISTENT, Stage.UNMASK, Phase.DONE, "shares", releases=True, erases=SECRETS),
)


def party_rule(phase: Phase, stage: Stage, traits: frozenset[str]) -> PartyRule | None:
    """Returns the rule for a request in this phase and mode; None if the request is out of order."""
    for rule in PARTY_RULES:
        if rule.phase == phase and rule.stage == stage and traits.issuperset(rule.traits.split()):
            return rule
    return None


Need = Literal["n - D", "T", "n", "0"]


@dataclass(frozen=True)
class CoordinatorRule:
    """Rule of the coordinator: ``need`` valid replies in the round ``stage`` lead to the round ``then``; fewer abort.

    ``then`` is None if the sum is opened next. ``traits`` are the words of the mode that must hold.
    """

    stage: Stage
    need: Need
    then: Stage | None
    traits: str = ""


COORDINATOR_RULES: tuple[CoordinatorRule, ...] = (
    CoordinatorRule(Stage.ADVERTISE, "n - D", Stage.SHARE, "complete shares"),
    CoordinatorRule(Stage.ADVERTISE, "n", Stage.SHARE, "complete direct hybrid"),
    CoordinatorRule(Stage.ADVERTISE, "n", Stage.MASK, "complete direct classical"),
    CoordinatorRule(Stage.ADVERTISE, "n - D", Stage.REVEAL, "graph"),
    CoordinatorRule(Stage.REVEAL, "n - D", Stage.SHARE, "graph shares"),
    CoordinatorRule(Stage.REVEAL, "n", Stage.SHARE, "graph direct hybrid"),
    CoordinatorRule(Stage.REVEAL, "n", Stage.MASK, "graph direct classical"),
    CoordinatorRule(Stage.SHARE, "n - D", Stage.MASK, "shares"),
    CoordinatorRule(Stage.SHARE, "n", Stage.MASK, "direct hybrid"),
    CoordinatorRule(Stage.MASK, "n - D", Stage.CONSISTENCY, "shares"),
    CoordinatorRule(Stage.MASK, "n", Stage.CONSISTENCY, "direct"),
    CoordinatorRule(Stage.CONSISTENCY, "T", Stage.UNMASK, "shares"),
    CoordinatorRule(Stage.CONSISTENCY, "0", None, "direct"),
    CoordinatorRule(Stage.UNMASK, "T", None, "shares"),
)


def coordinator_rule(stage: Stage, traits: frozenset[str]) -> CoordinatorRule:
    """Returns the coordinator's rule for a round in this mode. Raises KeyError if the mode has no such round."""
    for rule in COORDINATOR_RULES:
        if rule.stage == stage and traits.issuperset(rule.traits.split()):
            return rule
    raise KeyError(stage)
