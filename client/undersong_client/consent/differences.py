"""The differences between two plans that were proposed under one name, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from undersong_common.printable import printable
from undersong_protocol.agreement.enrolment import party_fingerprint

if TYPE_CHECKING:  # A light command reads the differences and loads no statistic.
    from undersong_protocol.agreement.manifest import Manifest
    from undersong_protocol.secagg.parameters import Member

# Fields of a plan's privacy and of its quorum, each with its name in a list of differences, which a sheet signs.
_PRIVACY_FIELDS = (
    ("epsilon", "epsilon"),
    ("delta", "delta"),
    ("unit", "privacy unit"),
    ("max_per_unit", "records per unit"),
    ("contribution", "a unit's contribution"),
    ("max_records", "records per party"),
)
_QUORUM_FIELDS = (
    ("threshold", "parties that can open a sum"),
    ("tolerated_dropouts", "parties that may be missing"),
    ("colluders", "parties that may collude"),
    ("spare_attempts", "spare attempts"),
    ("post_quantum", "post-quantum masks"),
)


# A sheet signs the words on the left, which therefore stay; people read those on the right.
_WORDS_TO_READ = {
    "privacy unit": "who is protected",
    "records per unit": "records of one patient that count",
    "a unit's contribution": "how the records of one patient count together",
    "records per party": "records of one hospital, at most",
    "parties that can open a sum": "hospitals whose answers open a sum",
    "parties that may be missing": "hospitals that may be missing from a sum",
    "parties that may collude": "hospitals that may help the operator while the promise holds",
    "private sums": "sums over records",
    "noise, bounds or parameters of its sums": "the noise of its sums, their bounds or their parameters",
    "generators": "who writes the texts",
    "description": "what one text is",
    "without the party": "without the hospital",
    "with the party of fingerprint": "with the hospital of fingerprint",
}
# Of these a smaller or a larger number is better for whoever is protected.
_BETTER_IF_SMALLER = ("epsilon", "delta", "private sums", "numbers in all")
_BETTER_IF_LARGER = ("parties that can open a sum", "parties that may collude")
_SUM_DETAILS = "noise, bounds or parameters of its sums"


def changes_to_read(changes: Sequence[str]) -> tuple[str, ...]:
    """Returns the signed differences in words for people, with what is better or worse for whoever is protected.

    >>> changes_to_read(["epsilon 4 -> 2", "parties that may collude 2 -> 1", "task a -> b"])[0]
    'epsilon 4 -> 2: better, since a smaller number protects more'
    >>> changes_to_read([])
    ('nothing',)
    """
    changes_epsilon = any(change.startswith("epsilon ") for change in changes)
    if changes_epsilon:
        sum_details_words = ": the epsilon says how well all of it protects"
    else:
        sum_details_words = ": the epsilon, which stays, says how well all of it protects"
    return tuple(
        words_to_read(change) + (sum_details_words if change == _SUM_DETAILS else _judge(change)) for change in changes
    ) or ("nothing",)


def _judge(change: str) -> str:
    """Says if a change of a number is better or worse for whoever is protected; "" for any other change."""
    for name in (*_BETTER_IF_SMALLER, *_BETTER_IF_LARGER):
        if not change.startswith(f"{name} "):
            continue
        old_words, _, new_words = change.removeprefix(f"{name} ").partition(" -> ")
        try:
            has_grown = float(new_words) > float(old_words)
        except ValueError:
            return ""
        is_better = has_grown == (name in _BETTER_IF_LARGER)
        better_size = "larger" if name in _BETTER_IF_LARGER else "smaller"
        return f": {'better' if is_better else 'worse'}, since a {better_size} number protects more"
    return ""


def words_to_read(difference: str) -> str:
    """Returns a difference in words for people; those that the table does not name stay.

    >>> words_to_read("parties that may be missing 1 -> 0"), words_to_read("epsilon 4 -> 2")
    ('hospitals that may be missing from a sum 1 -> 0', 'epsilon 4 -> 2')
    """
    for signed_words, shown_words in _WORDS_TO_READ.items():
        if difference == signed_words or difference.startswith(f"{signed_words} "):
            return shown_words + difference.removeprefix(signed_words)
    return difference


def differences(earlier: Manifest, later: Manifest) -> tuple[str, ...]:
    """Returns the differences between two manifests, one line each; () only if the manifests are equal."""
    if earlier.hash == later.hash:
        return ()
    old_plan = earlier.plan
    new_plan = later.plan
    change_lines = [
        *(
            _value_change(
                field_words, getattr(old_plan.privacy, privacy_field), getattr(new_plan.privacy, privacy_field)
            )
            for privacy_field, field_words in _PRIVACY_FIELDS
        ),
        *_sum_changes(earlier, later),
        *_party_changes(earlier.roster, later.roster),
        *(
            _value_change(field_words, getattr(old_plan.quorum, field), getattr(new_plan.quorum, field))
            for field, field_words in _QUORUM_FIELDS
        ),
        _value_change("method", earlier.method, later.method),
        _value_change("task", earlier.task.get("name"), later.task.get("name")),
        _value_change("labels", ", ".join(earlier.task.get("labels", ())), ", ".join(later.task.get("labels", ()))),
        _value_change("description", earlier.task.get("description", "none"), later.task.get("description", "none")),
        _value_change("purpose", earlier.task.get("purpose", "none"), later.task.get("purpose", "none")),
        _value_change("publication", earlier.task.get("publication", "none"), later.task.get("publication", "none")),
        _value_change(
            "generators", ", ".join(earlier.task.get("generators", ())), ", ".join(later.task.get("generators", ()))
        ),
        _value_change("columns", ", ".join(earlier.task.get("columns", ())), ", ".join(later.task.get("columns", ()))),
        *_full_name_changes(earlier.full_names, later.full_names),
        "the embedding model" if earlier.embedder != later.embedder else "",
    ]
    return tuple(change_line for change_line in change_lines if change_line) or ("details that preview does not show",)


def _full_name_changes(old_names: Mapping[str, str], new_names: Mapping[str, str]) -> list[str]:
    return [
        _value_change(
            f"full name of {party_name}", old_names.get(party_name, "none"), new_names.get(party_name, "none")
        )
        for party_name in sorted({*old_names, *new_names})
    ]


def _value_change(name: str, old_value: Any, new_value: Any) -> str:
    if old_value == new_value:
        return ""
    old_words = _print_value(old_value)
    new_words = _print_value(new_value)
    if old_words != new_words:
        return f"{name} {old_words} -> {new_words}"
    return f"{name} {old_value!r} -> {new_value!r}"


def _sum_changes(earlier: Manifest, later: Manifest) -> list[str]:
    old_sums = earlier.plan.sums
    new_sums = later.plan.sums
    if old_sums == new_sums:
        return []
    old_counts, new_counts = (Counter(planned_sum.statistic for planned_sum in sums) for sums in (old_sums, new_sums))
    return [
        _value_change("private sums", len(old_sums), len(new_sums)),
        _value_change(
            "numbers in all",
            sum(old_sum.dimension for old_sum in old_sums),
            sum(new_sum.dimension for new_sum in new_sums),
        ),
        *(
            f"{printable(statistic, 60)} {old_counts[statistic]} times -> {new_counts[statistic]} times"
            for statistic in sorted({*old_counts, *new_counts})
            if old_counts[statistic] != new_counts[statistic]
        ),
        _SUM_DETAILS,
    ]


def _party_changes(old_roster: tuple[Member, ...], new_roster: tuple[Member, ...]) -> list[str]:
    old_identities, new_identities = (
        {member.name: member.identity for member in roster} for roster in (old_roster, new_roster)
    )
    return [
        *(f"without the party {party_name}" for party_name in sorted(old_identities.keys() - new_identities.keys())),
        *(
            f"with the party of fingerprint {party_fingerprint(party_name, new_identities[party_name])}, {party_name}"
            for party_name in sorted(new_identities.keys() - old_identities.keys())
        ),
        *(
            f"another identity key, of fingerprint {party_fingerprint(party_name, new_identities[party_name])}, for"
            " the party"
            f" {party_name}"
            for party_name in sorted(old_identities.keys() & new_identities.keys())
            if old_identities[party_name] != new_identities[party_name]
        ),
    ]


def _print_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return printable(str(value), 120)
