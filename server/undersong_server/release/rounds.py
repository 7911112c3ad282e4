"""Figures of a run by round: texts, weights of generators, and distances of the corpus to public and private texts.

Nothing here reads a record: the private distance is computed from one opened sum (methods/parts/distance.py).
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from undersong_common.arrays import Float32, Float64
from undersong_common.models.embedding import Embed
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.evaluation.metrics import frechet_distance, neighbourhoods
from undersong_server.methods.interface import Records
from undersong_server.methods.parts import distance
from undersong_server.pool import Origin, Sample
from undersong_server.runs.execution import Outcome
from undersong_server.runs.planning import RunPlan

MOST_TEXTS = 500  # texts of corpus and test file in distances whose bias depends on the number
FEWEST_TEXTS = 10  # Fewer texts have no neighbourhoods.

Corpora = Mapping[int, Sequence[Sample]]


@dataclass(frozen=True)
class RoundFigure:
    """A figure after a round, counted from 1.

    Attributes:
        of: a generator, or "" for the whole corpus.
        standard_error: error that the noise of private sums gives it; None if there is none or it is not computed.
    """

    round: int
    figure: str
    of: str
    value: float
    standard_error: float | None = None


def recorded_figures(origins: Sequence[Origin], records: Records, generators: Sequence[str]) -> list[RoundFigure]:
    """Returns the texts that each generator wrote in each round, and its share of the round as the method set it."""
    text_counts = Counter((origin.sample.round, origin.sample.generator) for origin in origins)
    figure_rows = [
        RoundFigure(round_number + 1, "texts", generator_name, float(text_count))
        for (round_number, generator_name), text_count in sorted(text_counts.items())
    ]
    noise = dict(records.get("weights noise", ()))
    for round_number, round_weights in records.get("weights", ()):
        weight_errors = noise.get(round_number, [None] * len(round_weights))
        figure_rows += [
            RoundFigure(round_number + 1, "weight", generator_name, float(weight), error)
            for generator_name, weight, error in zip(generators, round_weights, weight_errors, strict=True)
        ]
    return figure_rows


def public_distances(corpora: Corpora, test: Sequence[str], embed: Embed, *, seed: int = 0) -> list[RoundFigure]:
    """Returns the Frechet distance, precision and recall of each round's corpus beside public test texts.

    All rounds have equally many drawn texts, because the bias of the three goes by their number. A round whose corpus
    is too small for them has none.
    """
    rng = np.random.default_rng(seed)
    corpora = {round_number: corpus for round_number, corpus in corpora.items() if len(corpus) >= FEWEST_TEXTS}
    text_count = min([MOST_TEXTS, len(test), *(len(corpus) for corpus in corpora.values())])
    if text_count < FEWEST_TEXTS:
        return []
    test_embeddings = embed([test[place] for place in rng.permutation(len(test))[:text_count]])
    figure_rows = []
    for round_number, corpus in sorted(corpora.items()):
        round_embeddings = embed([corpus[place].text for place in rng.permutation(len(corpus))[:text_count]])
        neighbour_figures = neighbourhoods(round_embeddings, test_embeddings)
        figure_by_name = {"Frechet distance": frechet_distance(round_embeddings, test_embeddings)}
        figure_by_name |= {name: neighbour_figures[name] for name in ("precision", "recall")}
        figure_rows += [RoundFigure(round_number + 1, name, "", value) for name, value in figure_by_name.items()]
    return figure_rows


def private_distances(corpora: Corpora, noisy_sum: NoisySum, record_count: int, embed: Embed) -> list[RoundFigure]:
    """Returns each round's squared distance of means to the records, and its change since the first round."""
    mean_by_round = {
        round_number: _mean_embedding(embed([sample.text for sample in corpus]))
        for round_number, corpus in sorted(corpora.items())
        if corpus
    }
    figure_rows = []
    for round_number, mean in mean_by_round.items():
        distance_estimate = distance.squared_distance(noisy_sum, record_count, mean)
        figure_rows.append(
            RoundFigure(
                round_number + 1, "squared distance of means", "", distance_estimate.value, distance_estimate.error
            )
        )
        if (first_round := min(mean_by_round)) != round_number:
            distance_change = distance.squared_distance_change(
                noisy_sum, record_count, mean, mean_by_round[first_round]
            )
            figure_rows.append(
                RoundFigure(
                    round_number + 1,
                    "squared distance of means, change",
                    "",
                    distance_change.value,
                    distance_change.error,
                )
            )
    return figure_rows


def figures_by_round(
    run_plan: RunPlan, outcome: Outcome, embed: Embed, test: Sequence[str], *, seed: int
) -> list[RoundFigure]:
    """Returns a finished run's figures of each round: what it recorded, and distances of its texts to real ones.

    The real ones are the public texts ``test``, empty where there are none, and the records if a sum measured them.
    """
    round_figures = recorded_figures(outcome.origins, outcome.records, run_plan.setting.generators)
    if test and outcome.corpora:
        round_figures += public_distances(outcome.corpora, test, embed, seed=seed)
    if outcome.distance is not None:
        expected_records = run_plan.task.privacy.expected_records
        round_figures += private_distances(outcome.corpora, outcome.distance, expected_records, embed)
    return round_figures


def _mean_embedding(embeddings: Float32) -> Float64:
    mean: Float64 = embeddings.astype(np.float64).mean(axis=0)
    return mean


def table_of_rounds(figures: Sequence[RoundFigure]) -> str:
    """Returns the figures as CSV with a heading, ordered by round; a figure that cannot be computed is left out."""
    csv_text = io.StringIO()
    writer = csv.writer(csv_text, lineterminator="\n")
    writer.writerow(figure_field.name for figure_field in fields(RoundFigure))
    for figure in sorted(figures, key=lambda figure: figure.round):
        if math.isfinite(figure.value):
            writer.writerow("" if figure_value is None else figure_value for figure_value in astuple(figure))
    return csv_text.getvalue()
