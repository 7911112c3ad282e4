"""The mixture with label shares after the records', ``mixture+labels``: what one label histogram is worth.

Equal weights over the generators, zero-shot texts, nothing private but the labels. A method that weighs generators
has to beat this one; the difference from the plain mixture is what the label shares bring.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import LabelHistogram
from undersong_server.methods.interface import Method, MethodOptions, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.shares import LabelShares, check_named, label_shares, to_write, wanted_shares


class Options(MethodOptions):
    """Options of the method ``mixture+labels``: its [method] keys.

    Attributes:
        samples: texts in all.
        label_shares: of the corpus: half-way between equal shares and the records' ("half", their geometric mean), the
            "records"' own, "even", or a table with a number for each label.
    """

    samples: Annotated[int, Field(ge=1)] = 6000
    label_shares: LabelShares = "half"


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns one label histogram. Raises ConfigurationError for a task without labels."""
    if not setting.labels:
        raise ConfigurationError(
            'method "mixture+labels" needs task.labels', 'name the labels, or use name = "mixture"'
        )
    check_named(options.label_shares, setting.labels)
    return [SumRequest("labels", LabelHistogram(len(setting.labels)))]


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the synthetic corpus."""
    half = label_shares(run.private_sum("labels", []))
    shares = wanted_shares(options.label_shares, half, run.setting.labels)
    run.record("label shares", 0, shares.tolist())
    generators, names = run.setting.generators, run.setting.labels
    none = np.zeros((len(generators), len(names)), dtype=np.int64)
    wanted = to_write(none, np.full(none.shape, 1.0 / len(generators)), shares, none > 0, options.samples)
    run.generate(
        "mixture",
        0,
        [
            Order(generator, "zero_shot", names[label])
            for generator, counts in zip(generators, wanted, strict=True)
            for label in np.repeat(np.arange(len(names)), counts)
        ],
    )
    return run.pool.samples


METHOD = Method(
    Options=Options,
    plan=plan,
    run=run,
    asks_first=lambda _options, _setting: True,
)
