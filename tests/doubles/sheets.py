"""A sheet without a plan, for tests of the decision that signs it."""

from typing import Any

from undersong_client.consent.sheet import Sheet, StatedTask, UnitPromise


def blank_sheet(**changes: Any) -> Sheet:
    """A sheet of a run without sums, with these fields changed."""
    task = StatedTask("triage", None, None, None, None, None, None)
    privacy = UnitPromise(1.0, 1e-5, "user", "patient", 4, 1000, 0.6, 2.0, stopping_refunds=True)
    fields: dict[str, Any] = {
        "two_people": True,
        "drill": False,
        "run": "first",
        "manifest": "00" * 32,
        "task": task,
        "operator": "the operator",
        "own": None,
        "method": "wasp",
        "coordinator": None,
        "privacy": privacy,
        "cost": None,
        "party": "alpha",
        "others": 2,
        "tolerated_dropouts": 1,
        "colluders": 1,
        "post_quantum": True,
        "clock_bits": 0.0,
        "first_rung_s": 0.0,
        "numbers_in_all": 0,
        "labels_missing": False,
    }
    sequences = ("asked", "required_parties", "parties", "releases", "objections", "remedies", "cautions", "warnings")
    return Sheet(**(fields | dict.fromkeys(sequences, ()) | changes))
