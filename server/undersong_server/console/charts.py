"""What the console's charts show, as values for the page's script; each chart has a table beside it."""

from __future__ import annotations

from typing import Any

from undersong_server.operations.following import LiveRun, RunPlanFacts

NOISE_DEVIATIONS = 2.0


def weights(live: LiveRun) -> dict[str, Any] | None:
    """Each generator's weight by round, and what the noise alone moves it by (2 deviations) where the method tells it.

    None before there are two rounds of several generators.
    """
    if len(live.weights) < 2 or len(live.generators) < 2:
        return None
    series: list[dict[str, Any]] = []
    for index, name in enumerate(live.generators):
        values = [row[index] for row in live.weights]
        series.append({"name": name, "unit": "%", "values": values})
        if live.weights_noise:
            noise = [live.weights_noise.get(round_, live.no_noise)[index] for round_ in range(len(values))]
            bars = [NOISE_DEVIATIONS * each for each in noise]
            low = [max(0.0, value - bar) for value, bar in zip(values, bars, strict=True)]
            high = [min(1.0, value + bar) for value, bar in zip(values, bars, strict=True)]
            series[-1] |= {"low": low, "high": high}
    return {"across": "round", "x": list(range(len(live.weights))), "series": series}


def shares(live: LiveRun) -> dict[str, Any] | None:
    """Each generator's share of the votes by sum, with what the noise may have added or taken (2 deviations)."""
    voted = [each for each in live.sums if each.shares]
    if not voted or len(live.generators) < 2:
        return None
    series = []
    for index, name in enumerate(live.generators):
        values = [each.shares[index] for each in voted]
        bars = [NOISE_DEVIATIONS * each.noise[index] for each in voted]
        low = [value - bar for value, bar in zip(values, bars, strict=True)]
        high = [value + bar for value, bar in zip(values, bars, strict=True)]
        series.append({"name": name, "unit": "%", "values": values, "low": low, "high": high})
    return {"across": "private sum with votes", "x": list(range(1, len(voted) + 1)), "series": series}


def epsilon(live: LiveRun, plan: RunPlanFacts) -> dict[str, Any] | None:
    """Epsilon after each private sum beside what was promised; None where the run is not private."""
    if not plan.epsilon_after:
        return None
    spent = [0.0, *(each.epsilon_after for each in live.sums)]
    planned = [0.0, *plan.epsilon_after]
    x = list(range(len(planned)))
    return {
        "across": "private sum",
        "x": x,
        "series": [
            {"name": "spent", "values": [*spent, *[None] * (len(planned) - len(spent))], "steps": True},
            {"name": "planned", "values": planned, "steps": True, "dash": True, "colour": 9},
        ],
    }
