"""The order of the protocol as tables: the requests that a party answers in each phase, and the coordinator's rounds.

The machines look rules up here and docs/secagg.md's diagrams are drawn from here (``python -m
tests.diagrams``).
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
    traits: frozenset[str] = frozenset()
    charged: bool = False
    releases: bool = False
    erases: tuple[str, ...] = ()


# Secrets a party draws once, at the start; docs/secagg.md says what each is for.
SECRETS = ("channel", "mask", "self_mask", "noise_own", "noise_root", "nonce", "sharing", "channel_kem")
_NEEDED_UNTIL_SHARE = ("channel", "nonce", "sharing")
_NEEDED_UNTIL_MASK = ("mask", "self_mask", "noise_own", "channel_kem")


def _rule(
    phase: Phase, stage: Stage, then: Phase, traits: str = "", marks: str = "", erases: tuple[str, ...] = ()
) -> PartyRule:
    marked = marks.split()
    return PartyRule(phase, stage, then, frozenset(traits.split()), "charged" in marked, "releases" in marked, erases)


PARTY_RULES: tuple[PartyRule, ...] = (
    _rule(Phase.OPENED, Stage.ADVERTISE, Phase.ADVERTISED),
    _rule(Phase.ADVERTISED, Stage.REVEAL, Phase.REVEALED, "graph"),
    _rule(Phase.REVEALED, Stage.REVEAL, Phase.REVEALED, "graph"),
    _rule(Phase.ADVERTISED, Stage.SHARE, Phase.SHARED, "complete shares", "", _NEEDED_UNTIL_SHARE),
    _rule(Phase.REVEALED, Stage.SHARE, Phase.SHARED, "graph shares", "", _NEEDED_UNTIL_SHARE),
    _rule(Phase.ADVERTISED, Stage.SHARE, Phase.SHARED, "complete direct hybrid", "", _NEEDED_UNTIL_SHARE),
    _rule(Phase.REVEALED, Stage.SHARE, Phase.SHARED, "graph direct hybrid", "", _NEEDED_UNTIL_SHARE),
    _rule(Phase.SHARED, Stage.MASK, Phase.MASKED, "shares", "charged", _NEEDED_UNTIL_MASK),
    _rule(Phase.SHARED, Stage.MASK, Phase.MASKED, "direct hybrid", "charged releases", SECRETS),
    _rule(Phase.ADVERTISED, Stage.MASK, Phase.MASKED, "complete direct classical", "charged releases", SECRETS),
    _rule(Phase.REVEALED, Stage.MASK, Phase.MASKED, "graph direct classical", "charged releases", SECRETS),
    _rule(Phase.MASKED, Stage.CONSISTENCY, Phase.CONSISTENT, "shares"),
    _rule(Phase.MASKED, Stage.CONSISTENCY, Phase.DONE, "direct", "", SECRETS),
    _rule(Phase.CONSISTENT, Stage.UNMASK, Phase.DONE, "shares", "releases", SECRETS),
)


def party_rule(phase: Phase, stage: Stage, traits: frozenset[str]) -> PartyRule | None:
    """Returns the rule for a request in this phase and mode; None if the request is out of order."""
    for rule in PARTY_RULES:
        if rule.phase == phase and rule.stage == stage and rule.traits <= traits:
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
    traits: frozenset[str] = frozenset()


def _round(stage: Stage, need: Need, then: Stage | None, traits: str = "") -> CoordinatorRule:
    return CoordinatorRule(stage, need, then, frozenset(traits.split()))


COORDINATOR_RULES: tuple[CoordinatorRule, ...] = (
    _round(Stage.ADVERTISE, "n - D", Stage.SHARE, "complete shares"),
    _round(Stage.ADVERTISE, "n", Stage.SHARE, "complete direct hybrid"),
    _round(Stage.ADVERTISE, "n", Stage.MASK, "complete direct classical"),
    _round(Stage.ADVERTISE, "n - D", Stage.REVEAL, "graph"),
    _round(Stage.REVEAL, "n - D", Stage.SHARE, "graph shares"),
    _round(Stage.REVEAL, "n", Stage.SHARE, "graph direct hybrid"),
    _round(Stage.REVEAL, "n", Stage.MASK, "graph direct classical"),
    _round(Stage.SHARE, "n - D", Stage.MASK, "shares"),
    _round(Stage.SHARE, "n", Stage.MASK, "direct hybrid"),
    _round(Stage.MASK, "n - D", Stage.CONSISTENCY, "shares"),
    _round(Stage.MASK, "n", Stage.CONSISTENCY, "direct"),
    _round(Stage.CONSISTENCY, "T", Stage.UNMASK, "shares"),
    _round(Stage.CONSISTENCY, "0", None, "direct"),
    _round(Stage.UNMASK, "T", None, "shares"),
)


def coordinator_rule(stage: Stage, traits: frozenset[str]) -> CoordinatorRule:
    """Returns the coordinator's rule for a round in this mode. Raises KeyError if the mode has no such round."""
    for rule in COORDINATOR_RULES:
        if rule.stage == stage and rule.traits <= traits:
            return rule
    raise KeyError(stage)
