"""Warnings about choices that promise little privacy, for the people who plan a run and those who approve it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undersong_protocol.agreement.plan import Plan

WEAK_DELTA = 1e-3
FEW_PARTIES = 3  # with fewer, another party can subtract its own part from the opened sum


def weak_delta(delta: float) -> list[str]:
    """One sentence if ``delta`` promises little, else an empty list."""
    if delta < WEAK_DELTA:
        return []
    return [
        f"delta {delta:g} allows anything to happen once in {1 / delta:.3g} times: take one far below"
        " 1 / (number of patients)"
    ]


def of_plan(plan: Plan) -> list[str]:
    """One sentence for each weak choice in a plan, for its maker."""
    found = weak_delta(plan.privacy.delta) if math.isfinite(plan.privacy.epsilon) else []
    if plan.quorum.parties == 1:
        found.append("there is only one party: the sum that opens is its own")
    elif plan.quorum.parties < FEW_PARTIES:
        found.append("there are only two parties: each can subtract its own part from the opened sum")
    return found
