"""Draws the protocol's transitions as Mermaid state diagrams in docs/secagg.md: ``python -m tests.diagrams``.

A test compares what is drawn with what the document shows, so neither can drift.
"""

from pathlib import Path

from undersong_protocol.secagg.transitions import COORDINATOR_RULES, PARTY_RULES, Phase

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "secagg.md"
_BEGIN = "<!-- {} diagram: python -m tests.diagrams -->"
_END = "<!-- end of diagram -->"


def _mode(traits: str) -> str:
    return f" [{', '.join(sorted(traits.split()))}]" if traits else ""


def party_diagram() -> str:
    """The party's phases, what moves it on, what it writes first and what it erases."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.OPENED.name}"]
    for rule in PARTY_RULES:
        notes = []
        if rule.charged:
            notes.append("ledger first")
        if rule.releases:
            notes.append("releases")
        label = rule.stage.title + _mode(rule.traits) + (f" / {', '.join(notes)}" if notes else "")
        lines.append(f"    {rule.phase.name} --> {rule.then.name}: {label}")
    lines += [
        f"    {phase.name} --> {Phase.TOMBSTONED.name}: a failed check, or voided"
        for phase in Phase
        if phase not in (Phase.DONE, Phase.TOMBSTONED)
    ]
    lines += [f"    {Phase.DONE.name} --> [*]", f"    {Phase.TOMBSTONED.name} --> [*]"]
    return "\n".join(lines)


def coordinator_diagram() -> str:
    """The coordinator's rounds and how many valid replies take it to the next."""
    lines = ["stateDiagram-v2", f"    [*] --> {COORDINATOR_RULES[0].stage.name}"]
    for rule in COORDINATOR_RULES:
        then = "OPENED_SUM" if rule.then is None else rule.then.name
        lines.append(f"    {rule.stage.name} --> {then}: {rule.need} valid replies{_mode(rule.traits)}")
    lines += [
        f"    {name} --> ABORTED: fewer" + (", or a false secret" if name == "UNMASK" else "")
        for name in dict.fromkeys(rule.stage.name for rule in COORDINATOR_RULES)
    ]
    lines += ["    OPENED_SUM --> [*]", "    ABORTED --> [*]"]
    return "\n".join(lines)


def with_diagrams(document: str) -> str:
    """``document`` with both diagrams drawn anew between their marks. Raises ValueError where a mark is missing."""
    for name, drawn in (("party", party_diagram()), ("coordinator", coordinator_diagram())):
        begin = _BEGIN.format(name)
        before, found, rest = document.partition(begin)
        if not found or _END not in rest:
            raise ValueError(f"the document has no mark {begin}")
        document = f"{before}{begin}\n```mermaid\n{drawn}\n```\n{_END}{rest.partition(_END)[2]}"
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(with_diagrams(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
