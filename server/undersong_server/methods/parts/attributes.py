"""A task's attributes in a method: the sum that counts them, and the values that orders name."""

from collections.abc import Sequence

import numpy as np

from undersong_common.arrays import Float64
from undersong_protocol.statistics.attributes import COLUMNS, VALUES, AttributeMarginals
from undersong_protocol.wire.public import Input
from undersong_server.methods.interface import RunContext, Setting
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.pool import Sample


def marginals(setting: Setting) -> AttributeMarginals:
    """Returns the statistic that counts labels and attributes."""
    sizes = [tuple(len(each.possible) for each in setting.attributes if each.column is kind) for kind in (False, True)]
    return AttributeMarginals(len(setting.labels), *sizes)


def published(run: RunContext) -> list[Input]:
    """Returns the inputs of that sum: the lists' values as embeddings, the columns' names and values as texts."""
    inputs, writer = [], run.setting.generators[0]
    lists = [each for each in run.setting.attributes if not each.column]
    texts = [part for each in run.setting.attributes if each.column for part in (each.name, *each.values)]
    if lists:
        values = [Sample(value, "", writer, 0, "value") for each in lists for value in each.values]
        numbers = np.repeat(np.arange(len(lists)), [len(each.values) for each in lists])
        inputs.append(run.publish_vectors(VALUES, "attribute values", run.embeddings(values), numbers))
    return [*inputs, run.publish_texts(COLUMNS, texts)] if texts else inputs


def shares(run: RunContext, counts: Float64) -> list[Float64]:
    """Returns and records the shares of each attribute's values, from the noisy counts of all, in the sum's order."""
    found, before = [], 0
    for each in run.setting.attributes:
        found.append(shares_of_counts(counts[before : before + len(each.possible)]))
        before += len(each.possible)
        run.record(f"shares of {each.name}", 0, found[-1].tolist())
    return found


def drawn(setting: Setting, of: Sequence[Float64], rng: np.random.Generator) -> tuple[tuple[str, str], ...]:
    """Draws one value of each attribute by its shares: (name, value) each; "" is a column's missing value."""
    numbers = [int(rng.choice(len(share), p=share)) for share in of]
    return tuple((each.name, each.possible[n]) for each, n in zip(setting.attributes, numbers, strict=True))


def terms(setting: Setting, chosen: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the words of a prompt: a list's value, a column's name with its value, nothing of a missing one."""
    columns = {each.name for each in setting.attributes if each.column}
    return tuple(f"{name} {value}" if name in columns else value for name, value in chosen if value)
