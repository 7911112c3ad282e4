"""The tables are the protocol's order, and the site's page shows every rule."""

import pytest

from tools.transition_tables import coordinator_table, party_table
from undersong_protocol.secagg.transitions import (
    COORDINATOR_RULES,
    PARTY_RULES,
    SECRETS,
    Phase,
    Stage,
    coordinator_rule,
    party_rule,
)
from undersong_protocol.wire.messages import secagg_pb2 as wire

MODES = [
    frozenset({graph, way, masks})
    for graph in ("complete", "graph")
    for way in ("shares", "direct")
    for masks in ("classical", "hybrid")
]


def test_documentation_site_shows_every_transition_of_a_party() -> None:
    rows = [row.split(" | ") for row in party_table().split("\n")[2:-1]]
    shown = [(row[0].strip("| "), row[1], row[4].strip("| "), "ledger first" in row[3]) for row in rows]
    assert shown == [(rule.phase.name, rule.stage.title, rule.then.name, rule.charged) for rule in PARTY_RULES]


def test_documentation_site_shows_every_round_of_the_coordinator() -> None:
    rows = [row.split(" | ") for row in coordinator_table().split("\n")[2:]]
    assert [(row[0].strip("| "), row[2]) for row in rows] == [(r.stage.name, r.need) for r in COORDINATOR_RULES]


def test_stages_have_the_numbers_of_the_wire_format() -> None:
    assert {stage.name: int(stage) for stage in Stage} == {
        name: value for name, value in wire.Stage.items() if name != "UNKNOWN"
    }


@pytest.mark.parametrize("traits", MODES)
def test_party_and_coordinator_rules_go_through_the_same_rounds(traits: frozenset[str]) -> None:
    rounds: list[Stage] = []
    stage: Stage | None = Stage.ADVERTISE
    while stage is not None:
        rounds.append(stage)
        stage = coordinator_rule(stage, traits).then
    phase = Phase.OPENED
    for asked in rounds:
        rule = party_rule(phase, asked, traits)
        assert rule is not None
        phase = rule.then
    assert phase is Phase.DONE


@pytest.mark.parametrize("traits", MODES)
def test_transition_rules_are_unambiguous_and_final_phases_erase_secrets(traits: frozenset[str]) -> None:
    seen = set()
    for rule in PARTY_RULES:
        if traits.issuperset(rule.traits.split()):
            assert (rule.phase, rule.stage) not in seen
            seen.add((rule.phase, rule.stage))
            assert rule.then is not Phase.DONE or set(rule.erases) == set(SECRETS)
    assert sum(rule.charged for rule in PARTY_RULES if traits.issuperset(rule.traits.split())) == 1
    assert sum(rule.releases for rule in PARTY_RULES if traits.issuperset(rule.traits.split())) == 1
    assert len({rule.stage for rule in COORDINATOR_RULES if traits.issuperset(rule.traits.split())}) == sum(
        traits.issuperset(rule.traits.split()) for rule in COORDINATOR_RULES
    )
