"""Figures by round: each equals a plain computation, and their file has one line each."""

import csv
import io

import numpy as np
import pytest

from tests.doubles.parties import embed
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.evaluation.metrics import frechet_distance, neighbourhoods
from undersong_server.pool import Origin, Sample
from undersong_server.release.rounds import (
    RoundFigure,
    private_distances,
    public_distances,
    recorded_figures,
    table_of_rounds,
)


def texts(name: str, count: int) -> list[str]:
    return [f"{name} number {number} of many" for number in range(count)]


def samples(name: str, count: int) -> tuple[Sample, ...]:
    return tuple(Sample(text, "a", "one", 0, "zero_shot") for text in texts(name, count))


def opened(sum_of_embeddings: np.ndarray, sigma: float) -> NoisySum:
    scale = 1 << 20
    return NoisySum(
        values=np.rint(sum_of_embeddings * scale).astype(np.int64),
        scale=scale,
        sigma=sigma,
        survivors=(),
    )


def test_recorded_weights_have_the_standard_error_of_their_noise():
    origins = [Origin(Sample(f"t{n}", "a", "one" if n < 3 else "other", n % 2, "zero_shot")) for n in range(5)]
    records = {"weights": [(0, [0.5, 0.5]), (1, [0.7, 0.3])], "weights noise": [(1, [0.2, 0.1])]}
    figures = recorded_figures(origins, records, ["one", "other"])
    assert RoundFigure(1, "texts", "one", 2.0) in figures
    assert RoundFigure(2, "texts", "other", 1.0) in figures
    assert [figure for figure in figures if figure.figure == "weight"] == [
        RoundFigure(1, "weight", "one", 0.5),
        RoundFigure(1, "weight", "other", 0.5),
        RoundFigure(2, "weight", "one", 0.7, 0.2),
        RoundFigure(2, "weight", "other", 0.3, 0.1),
    ]


def test_public_distances_of_rounds_compare_equal_numbers_of_texts():
    corpora = {0: samples("rain", 30), 1: samples("snow", 20)}
    figures = {
        (figure.round, figure.figure): figure.value for figure in public_distances(corpora, texts("hail", 25), embed)
    }
    assert figures.keys() == {(t, name) for t in (1, 2) for name in ("Frechet distance", "precision", "recall")}
    rng = np.random.default_rng(0)
    real = embed([texts("hail", 25)[place] for place in rng.permutation(25)[:20]])
    for t in (0, 1):
        drawn = embed([corpora[t][place].text for place in rng.permutation(len(corpora[t]))[:20]])
        assert figures[t + 1, "Frechet distance"] == pytest.approx(frechet_distance(drawn, real))
        assert figures[t + 1, "recall"] == neighbourhoods(drawn, real)["recall"]
    assert public_distances({0: samples("rain", 3)}, texts("hail", 25), embed) == []
    late = public_distances({0: samples("rain", 3), 1: samples("snow", 20)}, texts("hail", 25), embed)
    assert {figure.round for figure in late} == {2}


def test_private_distances_are_exact_when_there_is_no_noise():
    records = embed(texts("record", 40)).astype(np.float64)
    corpora = {0: samples("rain", 30), 2: samples("record", 40)}
    figures = private_distances(corpora, opened(records.sum(axis=0), 0.0), 40, embed)
    rain = embed(texts("rain", 30)).astype(np.float64)
    expected = np.square(rain.mean(axis=0) - records.mean(axis=0)).sum()
    assert [(figure.round, figure.figure) for figure in figures] == [
        (1, "squared distance of means"),
        (3, "squared distance of means"),
        (3, "squared distance of means, change"),
    ]
    assert [figure.value for figure in figures] == pytest.approx([expected, 0.0, -expected], abs=1e-6)
    assert [figure.standard_error for figure in figures] == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


def test_rounds_file_has_a_line_for_each_computable_figure():
    figures = [
        RoundFigure(2, "weight", "a, b", 0.5, 0.1),
        RoundFigure(1, "recall", "", 1.0),
        RoundFigure(1, "x", "", np.nan),
    ]
    rows = list(csv.DictReader(io.StringIO(table_of_rounds(figures))))
    assert rows == [
        {"round": "1", "figure": "recall", "of": "", "value": "1.0", "standard_error": ""},
        {"round": "2", "figure": "weight", "of": "a, b", "value": "0.5", "standard_error": "0.1"},
    ]
