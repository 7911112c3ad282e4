"""The masked sum's transitions as two tables, which the site shows in docs/secagg.md.

``python -m tools.transition_tables`` prints them.
"""

from undersong_protocol.secagg.transitions import COORDINATOR_RULES, PARTY_RULES, Phase


def party_table() -> str:
    """Returns a row for every request that a party answers: what it writes, releases and erases, and its next phase."""
    lines = ["| phase | request | in which runs | before the reply | next phase |", "|---|---|---|---|---|"]
    for rule in PARTY_RULES:
        steps = [name for name, holds in (("ledger first", rule.charged), ("releases", rule.releases)) if holds]
        steps += [f"erases {', '.join(rule.erases)}"] if rule.erases else []
        cells = (rule.phase.name, rule.stage.title, _runs(rule.traits), ", ".join(steps), rule.then.name)
        lines.append(f"| {' | '.join(cells)} |")
    failing = ", ".join(phase.name for phase in Phase if phase not in (Phase.DONE, Phase.TOMBSTONED))
    lines.append(f"| {failing} | any | all | a failed check, or the attempt is void | {Phase.TOMBSTONED.name} |")
    return "\n".join(lines)


def coordinator_table() -> str:
    """Returns a row for every round of the coordinator: how many valid replies it needs, and what follows."""
    lines = ["| round | in which runs | valid replies | next round | with fewer |", "|---|---|---|---|---|"]
    for rule in COORDINATOR_RULES:
        then = "the sum is open" if rule.then is None else rule.then.name
        otherwise = "the attempt ends" + (", as with a false secret" if rule.stage.name == "UNMASK" else "")
        cells = (rule.stage.name, _runs(rule.traits), str(rule.need), then, otherwise)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _runs(traits: str) -> str:
    return ", ".join(sorted(traits.split())) or "all"


if __name__ == "__main__":
    print(party_table(), coordinator_table(), sep="\n\n")
