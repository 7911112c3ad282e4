"""Tables of the papers at a small size: rows can be run, pages follow from figures, metrics are what they say."""

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import next_token, papers
from undersong.compare_cell import Variant
from undersong_common.table import Table

PLAN = papers.plan()
ROWS = [
    (name, table, row)
    for name, paper in PLAN.items()
    for table in paper["tables"]
    for row in papers.rows_of(paper, table)
]
TABLE = {
    "name": "Table 9",
    "about": "Invented.",
    "columns": {"panel": "panel", "deep": "tuned.accuracy"},
    "judged": "panel",
    "rows": [
        {"name": name, "method": name, "paper": paper}
        for name, paper in (("one", "2.0 / 9"), ("other", "3.0"), ("third", "1.5"), ("last", "-"))
    ],
    "claims": [
        {"better": "one", "than": "other", "reason": "Never."},
        {"better": "other", "than": "one", "reason": "The pool has no such text."},
        {"better": "one", "than": "third"},
    ],
}
PAPER = {"parties": 1, "seeds": 3, "about": "Small.", "tables": [TABLE]}


@pytest.mark.usefixtures("dpsgd_installed")
def test_every_row_names_a_variant_and_what_its_table_shows():
    for name, table, row in ROWS:
        Variant.parse(row["method"])
        assert row["paper"], (name, row["name"])
        assert table["judged"] in table["columns"].values()
        assert {"parties", "seeds"} <= row.keys()
        assert ("setting" in row) != ("task" in PLAN[name])
    for paper in PLAN.values():
        for table in paper["tables"]:
            names = [row["name"] for row in table["rows"]]
            assert len(set(names)) == len(names)
            assert {claim[side] for claim in table.get("claims", []) for side in ("better", "than")} <= set(names)


def test_every_kept_figure_is_of_a_row():
    keys = {json.dumps(papers.key_of(name, row, seed)) for name, _, row in ROWS for seed in range(row["seeds"])}
    assert {json.dumps(one["cell"]) for one in papers.known()} <= keys


def test_a_page_states_means_and_which_claims_are_seen(monkeypatch):
    monkeypatch.setattr(papers, "plan", lambda: {"wasp": PAPER})
    one, other = [0.80, 0.82, 0.81], [0.70, 0.73, 0.71]
    figures = [
        {"cell": papers.key_of("wasp", row, seed), "figures": {"panel": values[seed], "rows": 20}}
        for row, values in zip(papers.rows_of(PAPER, TABLE), (one, other, [0.9, 0.7, 0.8], other), strict=True)
        for seed in range(3)
    ]
    figures.append({"cell": figures[0]["cell"], "figures": {"tuned": {"accuracy": 0.5}}})  # measured on its own
    page = papers.section("wasp", figures)
    half = stats.t.ppf(0.975, 2) * np.std([80, 82, 81], ddof=1) / np.sqrt(3)
    assert f"| one | 2.0 / 9 | 81.0 ± {half:.1f} | 50.0 | 20 | 3 |" in page
    assert "| other | 3.0 | 71.3 ± 3.8 | - | 20 | 3 |" in page
    gain = stats.t.interval(0.95, 2, np.mean([10, 9, 10]), stats.sem([10, 9, 10]))
    seen, not_seen, open_claim = (line for line in page if line.startswith("* "))
    assert seen == f"* one above other: seen, +9.7 ({gain[0]:+.1f} to {gain[1]:+.1f})."
    assert not_seen.startswith("* other above one: not seen, -9.7 (")
    assert not_seen.endswith("The pool has no such text.")
    assert "one above third: open" in open_claim
    few = papers.section("wasp", figures[::3])  # one seed
    assert not [line for line in few if line.startswith("* ")]
    # the interval of "other" and "third" has 0
    assert page[-1] == "The other way round: 1 of 3 pairs. other (71.3, paper 3) below one (81.0, paper 2)."
    one_, third_ = "one (80.0, paper 2)", "third (90.0, paper 1.5)"
    whole = f"3 of 3 pairs. {one_} below {third_}. other (70.0, paper 3) below {one_}; {third_}."
    assert few[-1] == f"The other way round: {whole}"
    monkeypatch.setattr(papers, "plan", lambda: {"wasp": {**PAPER, "chance": 90.0}})
    assert "other way round" not in papers.section("wasp", figures[::3])[-1]  # no pair is compared
    monkeypatch.setattr(
        papers, "plan", lambda: {"wasp": {**PAPER, "chance": 1.7}}
    )  # the paper's third row is at chance
    assert "The other way round: 1 of 1 pairs above chance. other (" in papers.section("wasp", figures[::3])[-1]
    assert papers.section("wasp", []) == []
    assert papers.section("augpe", figures) == []


@pytest.mark.slow
def test_a_causal_model_predicts_what_its_corpus_taught_it():
    """After the first word the rest of a text is determined; a token that the corpus lacks is never right."""
    texts = ["red apple pie tastes good", "blue cheese board smells bad", "old iron nail bends fast"] * 80
    # [CLS] red apple pie tastes good [SEP]: of six tokens the first is a guess, which one text of three confirms
    assert next_token.accuracy(texts, texts[:3]) == pytest.approx((3 * 5 + 1) / 18)
    assert next_token.accuracy(texts, ["quantum zebra umbrella"]) <= 1 / 4  # [SEP] alone is known


def test_attacks_find_the_texts_that_a_model_remembers():
    class Model:
        labels = ("a", "b")

        def probabilities(self, texts):
            return np.array([[0.99, 0.01] if text in remembered else [0.6, 0.4] for text in texts])

    members, others = (Table(tuple(f"{name} {n}" for n in range(40)), ("a",) * 40, None) for name in ("own", "new"))
    remembered = set(members.texts)
    found = papers.attacked(Model(), members, others)
    assert found["entropy attack"] == found["confidence attack"] == found["entropy area"] == 1.0
    remembered = set()
    assert papers.attacked(Model(), members, others)["entropy area"] == 0.5
