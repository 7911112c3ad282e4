"""Differences between two plans under the same run name, in words for the people who decide."""

from __future__ import annotations

from collections import Counter
from typing import Any

from undersong_common.printable import printable
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.parameters import Member

_PRIVACY = (
    ("epsilon", "epsilon"),
    ("delta", "delta"),
    ("unit", "privacy unit"),
    ("max_per_unit", "records per unit"),
    ("contribution", "a unit's contribution"),
    ("max_records", "records per party"),
)
_QUORUM = (
    ("threshold", "parties that can open a sum"),
    ("tolerated_dropouts", "parties that may be missing"),
    ("colluders", "parties that may collude"),
    ("spare_attempts", "spare attempts"),
    ("post_quantum", "post-quantum masks"),
)


def differences(before: Manifest, now: Manifest) -> tuple[str, ...]:
    """Each difference as one line; at least one where the manifests differ, empty where they are the same."""
    if before.hash == now.hash:
        return ()
    found = [
        _changed(words, getattr(before.plan.privacy, field), getattr(now.plan.privacy, field))
        for field, words in _PRIVACY
    ]
    found += _sums(before, now)
    found += _parties(before.roster, now.roster)
    found += [
        _changed(words, getattr(before.plan.quorum, field), getattr(now.plan.quorum, field)) for field, words in _QUORUM
    ]
    found += [
        _changed("method", before.method, now.method),
        _changed("task", before.task.get("name"), now.task.get("name")),
        _changed("labels", ", ".join(before.task.get("labels", ())), ", ".join(now.task.get("labels", ()))),
        "the task's description" if before.task.get("description") != now.task.get("description") else "",
        "the task's purpose" if before.task.get("purpose") != now.task.get("purpose") else "",
        "where it is published" if before.task.get("publication") != now.task.get("publication") else "",
        _changed("generators", ", ".join(before.task.get("generators", ())), ", ".join(now.task.get("generators", ()))),
        "the embedding model" if before.embedder != now.embedder else "",
    ]
    return tuple(line for line in found if line) or ("details that preview does not show",)


def _changed(what: str, before: Any, now: Any) -> str:
    if before == now:
        return ""
    old, new = _printed(before), _printed(now)
    return f"{what} {old} -> {new}" if old != new else f"{what} {before!r} -> {now!r}"


def _sums(before: Manifest, now: Manifest) -> list[str]:
    old, new = before.plan.sums, now.plan.sums
    if old == new:
        return []
    found = [_changed("private sums", len(old), len(new))]
    found.append(_changed("numbers in all", sum(each.dimension for each in old), sum(each.dimension for each in new)))
    counts, others = (Counter(each.statistic for each in sums) for sums in (old, new))
    found += [
        f"{printable(statistic, 60)} {counts[statistic]} times -> {others[statistic]} times"
        for statistic in sorted({*counts, *others})
        if counts[statistic] != others[statistic]
    ]
    found.append("noise, bounds or parameters of its sums")
    return found


def _parties(before: tuple[Member, ...], now: tuple[Member, ...]) -> list[str]:
    old, new = ({member.name: member.identity for member in roster} for roster in (before, now))
    found = [f"without the party {name}" for name in sorted(old.keys() - new.keys())]
    found += [
        f"with the party of fingerprint {party_fingerprint(name, new[name])}, {name}"
        for name in sorted(new.keys() - old.keys())
    ]
    found += [
        f"another identity key, of fingerprint {party_fingerprint(name, new[name])}, for the party {name}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]
    return found


def _printed(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return printable(str(value), 120)
