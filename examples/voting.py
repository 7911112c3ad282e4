"""The method of the README: the records vote for texts, and the best texts are paraphrased, round by round.

Before every round but the first, each record votes for the four nearest of all texts so far.
"""

from itertools import cycle, islice, product

import numpy as np

import undersong as us
from undersong.methods import (
    Method,
    MethodOptions,
    Order,
    RunContext,
    Sample,
    Setting,
    SumRequest,
    TopQVotes,
    highest,
    offer,
)


class Options(MethodOptions):
    """Texts in all, and rounds in which they are written."""

    samples: int = 240
    rounds: int = 4


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    size, labels = options.samples // options.rounds, len(setting.labels)
    votes = [TopQVotes(q=4, candidates=r * size, labels=labels, furthest=False) for r in range(1, options.rounds)]
    return [SumRequest(f"votes {r}", vote) for r, vote in enumerate(votes, start=1)]


def run(options: Options, run: RunContext) -> list[Sample]:
    size = options.samples // options.rounds
    pairs = islice(cycle(product(run.setting.labels, run.setting.generators)), size)
    run.generate("round 0", 0, [Order(generator, "zero_shot", label) for label, generator in pairs])
    for r in range(1, options.rounds):
        votes, _ = run.votes(f"votes {r}")
        best = [run.pool.samples[place] for place in highest(votes, np.arange(len(votes)), size)]
        run.generate(f"round {r}", r, [Order(s.generator, "paraphrase", s.label, parents=(s.text,)) for s in best])
    return run.pool.samples


offer("voting", Method(Options=Options, plan=plan, run=run))

if __name__ == "__main__":
    result = us.simulate(us.Task.load("examples/clinic/task.toml", "method.name=voting"), "runs/voting")
    print(result.corpus["generator"].value_counts())
