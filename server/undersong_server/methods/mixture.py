"""The baseline without private data: zero-shot texts of all generators in equal parts."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from undersong_server.methods.interface import Method, MethodOptions, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.selection import largest_remainder
from undersong_server.methods.parts.shares import check_named


class Options(MethodOptions):
    """Options of ``mixture``. Keys of other methods are ignored: a comparison may set them for all.

    Attributes:
        samples: texts in all.
        label_shares: of the corpus: "even", or a table with a number for each label.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    samples: Annotated[int, Field(ge=1)] = 6000
    label_shares: PublicShares = "even"


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns no private sum: the method needs none."""
    check_named(options.label_shares, setting.labels)
    return []


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the synthetic corpus."""
    run.generate("mixture", 0, orders(options, run.setting))
    return run.pool.samples


def orders(options: Options, setting: Setting) -> list[Order]:
    """One zero-shot order per sample, balanced over generators, and over labels by their shares."""
    shares = public_shares(options.label_shares, setting.labels)
    task_labels = setting.labels or ("",)
    text_count_by_generator = largest_remainder(np.ones(len(setting.generators)), options.samples)
    written_count_of_label = np.zeros(len(task_labels), dtype=np.int64)
    text_orders = []
    for generator, text_count in zip(setting.generators, text_count_by_generator, strict=True):
        ordered_labels = deal_labels(int(text_count), shares, written_count_of_label)
        written_count_of_label += np.bincount(ordered_labels, minlength=len(task_labels))
        text_orders += [Order(generator, "zero_shot", task_labels[label]) for label in ordered_labels]
    return text_orders


METHOD = Method(
    Options=Options,
    plan=plan,
    run=run,
    makes_private_sums=False,
)
