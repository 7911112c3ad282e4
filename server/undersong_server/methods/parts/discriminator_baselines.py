"""Baselines of the discriminators: scores from the records' votes, as in WASP, and random scores."""

from typing import Literal

from undersong_common.arrays import Float64
from undersong_server.methods.interface import RunContext


def scores(kind: Literal["votes", "random"], run: RunContext) -> Float64:
    """Scores of the pool's candidates, float64 [N]: nearest minus furthest votes (the sum "votes"), or random ones."""
    if kind == "votes":
        near, far = run.votes("votes")
        return near - far
    return run.rng("random").random(len(run.pool))
