"""The method ``mixture+labels``: the mixture with label shares that follow the records' noisy label histogram.

All generators write equally many zero-shot texts, and nothing private but the histogram is used. A method that weighs
generators has to beat this one; the difference from the plain mixture is what the label shares bring.
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
    halfway_shares = label_shares(run.private_sum("labels", []))
    shares = wanted_shares(options.label_shares, halfway_shares, run.setting.labels)
    run.record("label shares", 0, shares.tolist())
    generators, label_names = run.setting.generators, run.setting.labels
    none_written = np.zeros((len(generators), len(label_names)), dtype=np.int64)
    counts_by_generator = to_write(
        none_written, np.full(none_written.shape, 1.0 / len(generators)), shares, none_written > 0, options.samples
    )
    run.generate(
        "mixture",
        0,
        [
            Order(generator, "zero_shot", label_names[label])
            for generator, label_counts in zip(generators, counts_by_generator, strict=True)
            for label in np.repeat(np.arange(len(label_names)), label_counts)
        ],
    )
    return run.pool.samples


METHOD = Method(
    Options=Options,
    plan=plan,
    run=run,
    asks_first=lambda _options, _setting: True,
)
