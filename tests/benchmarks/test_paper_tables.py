"""Tables of the papers at a small size: rows can be run, pages follow from figures, metrics are what they say."""

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import next_token, paper_tables, papers
from undersong.comparison.cell import Variant
from undersong_common.text.table import Table

PLAN = paper_tables.read_plan()
LINES = paper_tables.lines_of(PLAN)
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
        {"better": "one", "than": "other"},
        {"better": "other", "than": "one"},
        {"better": "one", "than": "third"},
    ],
}
PAPER = {"parties": 1, "seeds": 3, "about": "Small.", "tables": [TABLE]}


@pytest.mark.slow
@pytest.mark.usefixtures("dpsgd_installed")
def test_every_paper_table_row_names_a_variant_and_its_figure():
    for line in LINES:
        Variant.parse(line.row["method"])
        assert line.row["paper"], (line.paper, line.row["name"])
        assert {"parties", "seeds"} <= line.row.keys()
        assert "setting" in line.row or "task" in PLAN[line.paper]
    for paper in PLAN.values():
        for table in paper["tables"]:
            names = [row["name"] for row in table["rows"]]
            assert table["judged"] in table["columns"].values()
            assert len(set(names)) == len(names)
            assert {claim[side] for claim in table.get("claims", []) for side in ("better", "than")} <= set(names)


def test_paper_table_rows_have_five_seeds_or_three_if_over_ten_minutes():
    assert all(line.row["seeds"] >= 5 or (line.row["seeds"] == 3 and line.row["seconds"] > 600) for line in LINES)


def test_every_paper_table_has_a_baseline_mixture_without_records():
    tables = {(line.paper, line.table) for line in LINES}
    assert tables == {(line.paper, line.table) for line in LINES if line.row["method"].startswith("mixture:")}


def test_stored_figures_belong_to_a_table_row_and_name_their_commit():
    keys = {line.key(seed) for line in LINES for seed in range(line.row["seeds"])}
    assert paper_tables.by_cell(paper_tables.read_cells()).keys() <= keys
    assert all(len(cell["commit"]) == 8 for cell in paper_tables.read_cells())


def invented(rows: dict[str, list[float]], commit: str = "0123abcd") -> list[dict[str, object]]:
    """Cells of the invented table, a list of shares by row."""
    return [
        {"cell": paper_tables.key_of("wasp", row, seed), "commit": commit, "figures": {"panel": share, "rows": 20}}
        for row in paper_tables.rows_of(PAPER, TABLE)
        for seed, share in enumerate(rows.get(row["name"], []))
    ]


ROWS = {"one": [0.80, 0.82, 0.81], "other": [0.70, 0.73, 0.71], "third": [0.9, 0.7, 0.8], "last": [0.70, 0.73, 0.71]}


def test_paper_page_states_means_commits_and_which_claims_hold(monkeypatch):
    monkeypatch.setattr(paper_tables, "read_plan", lambda: {"wasp": PAPER})
    cells = invented(ROWS)
    tuned = {"cell": cells[0]["cell"], "commit": "0123abcd", "figures": {"tuned": {"accuracy": 0.5}}}
    page = paper_tables.section("wasp", [*cells, tuned])
    half = stats.t.ppf(0.975, 2) * np.std([80, 82, 81], ddof=1) / np.sqrt(3)
    assert f"| one | 2.0 / 9 | 81.0 ± {half:.1f} | 50.0 | 20 | 3 | 0123abcd |" in page
    assert "| other | 3.0 | 71.3 ± 3.8 | - | 20 | 3 | 0123abcd |" in page
    assert "    python -m benchmarks.papers --data FOLDER --papers wasp --tables 'Table 9'" in page
    gain = stats.t.interval(0.95, 2, np.mean([10, 9, 10]), stats.sem([10, 9, 10]))
    assert [line for line in page if line.startswith("* ")] == [
        f"* one above other: seen, +9.7 ({gain[0]:+.1f} to {gain[1]:+.1f}; 3 pairs).",
        f"* other above one: against, -9.7 ({-gain[1]:+.1f} to {-gain[0]:+.1f}; 3 pairs).",
        "* one above third: not resolved, +1.0 (-26.3 to +28.3; 3 pairs).",
    ]
    assert paper_tables.section("wasp", cells[::3]) == []  # one seed
    few = paper_tables.section("wasp", [cell for cell in cells if cell["cell"][1] != "other" or cell["cell"][-1] < 2])
    assert "Not measured by three seeds yet: other (the paper's: 3.0)." in few
    assert [line.partition(": ")[2] for line in few if line.startswith("* ")][:2] == [
        "not judged, a row is not measured yet."
    ] * 2
    bare = {**TABLE, "name": "Table 8", "rows": [{"name": name, "method": f"{name}:8"} for name in ROWS]}
    monkeypatch.setattr(paper_tables, "read_plan", lambda: {"wasp": {**PAPER, "tables": [TABLE, bare]}})
    assert "Not measured by three seeds yet: Table 8." in paper_tables.section("wasp", cells)
    assert paper_tables.section("wasp", []) == []
    assert paper_tables.section("augpe", cells) == []


def test_stored_older_figure_is_kept_beside_new_ones_with_its_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(paper_tables, "read_plan", lambda: {"wasp": PAPER})
    old = invented({"one": [0.5], "other": [0.6, 0.6, 0.6]}, "oldoldol")
    old[0]["figures"]["tuned"] = {"accuracy": 0.9}
    kept, journal = tmp_path / "papers.jsonl", tmp_path / "cells" / "journal.jsonl"
    kept.write_text("".join(json.dumps(cell) + "\n" for cell in old), encoding="utf-8")
    for cell in invented({"one": [0.8, 0.82, 0.81]}):
        paper_tables.append_cell(journal, cell)
    stranger = {"cell": ["wasp", "no row"], "commit": "0123abcd", "figures": {}}
    paper_tables.append_cell(journal, stranger)
    assert paper_tables.adopt(paper_tables.read_cells(journal), kept) == 3
    figures = [(cell["commit"], cell["figures"]) for cell in paper_tables.read_cells(kept)]
    fresh = [("0123abcd", {"panel": share, "rows": 20}) for share in (0.8, 0.82, 0.81)]
    assert figures == [*fresh, *[("oldoldol", {"panel": 0.6, "rows": 20})] * 3]
    page = paper_tables.section("wasp", paper_tables.read_cells(kept))
    assert "| other | 3.0 | 60.0 ± 0.0 | 20 | 3 | oldoldol |" in page


@pytest.fixture
def invented_papers(monkeypatch, tmp_path):
    """Two papers of one table each, whose cells are measured by a function of the row and the seed."""
    papers_plan = {name: {**PAPER, "tables": [{**TABLE, "claims": []}]} for name in ("wasp", "dpga")}
    for module in (papers, paper_tables):
        monkeypatch.setattr(module, "read_plan", lambda: papers_plan)
    measured: list[tuple[str, str, int]] = []

    def measure(paper, row, seed):
        measured.append((paper._name, row["name"], seed))
        share = 0.5 if paper._name in paper.planted else ROWS[row["name"]][seed]
        return {"panel": share, "processor": {"one": 9.0}.get(row["name"], 1.0)}

    monkeypatch.setattr(papers.Papers, "measure", measure)
    monkeypatch.setattr(papers.Papers, "planted", (), raising=False)
    monkeypatch.setattr(papers, "current_commit", lambda: "0123abcd")
    return measured


def run_papers(*words: object) -> int:
    return papers.main([str(word) for word in words])


@pytest.mark.heavy
def test_interrupted_paper_measurement_continues_where_it_stopped(invented_papers, tmp_path):
    journal, options = tmp_path / "journal.jsonl", ("--papers", "wasp", "dpga", "--data", tmp_path)
    assert run_papers(*options, "--out", journal) == 0
    whole = journal.read_bytes()
    assert len(invented_papers) == 2 * 4 * 3
    invented_papers.clear()
    journal.write_bytes(whole[:-5])  # within the last line
    assert run_papers(*options, "--out", journal) == 0
    assert journal.read_bytes() == whole
    assert len(invented_papers) == 1
    (tmp_path / "again.jsonl").write_bytes(whole.replace(b"one", b"two"))
    invented_papers.clear()
    assert run_papers(*options, "--out", tmp_path / "again.jsonl") == 0
    assert {name for _, name, _ in invented_papers} == {"one"}


def test_paper_table_rows_are_measured_in_order_of_cost(invented_papers, monkeypatch, tmp_path):
    run_papers("--papers", "wasp", "--data", tmp_path, "--out", tmp_path / "first.jsonl")
    monkeypatch.setattr(papers, "read_cells", lambda path=tmp_path / "first.jsonl": paper_tables.read_cells(path))
    invented_papers.clear()
    run_papers("--papers", "wasp", "--data", tmp_path, "--out", tmp_path / "second.jsonl")
    assert [name for _, name, _ in invented_papers] == ["other"] * 3 + ["third"] * 3 + ["last"] * 3 + ["one"] * 3


def test_check_covers_every_paper_and_fails_only_for_the_changed_figures(
    invented_papers, monkeypatch, tmp_path, capsys
):
    journal, options = tmp_path / "journal.jsonl", ("--papers", "wasp", "dpga", "--data", tmp_path)
    run_papers(*options, "--out", journal)
    monkeypatch.setattr(papers, "read_cells", lambda path=journal: paper_tables.read_cells(path))
    for draw in range(20):
        invented_papers.clear()
        assert run_papers(*options, "--check", 2, "--draw", draw) == 0
        assert {name for name, _, _ in invented_papers} == {"wasp", "dpga"}
    monkeypatch.setattr(papers.Papers, "planted", ("dpga",))
    capsys.readouterr()
    assert run_papers(*options, "--check", 8) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "seed" in line]
    wrong = [line for line in lines if line.startswith("FAILED")]
    assert len(lines) == 8
    assert all("dpga" in line for line in wrong)
    # "third" scatters so far that no single cell can contradict it
    assert len(wrong) == 3


def test_check_tolerance_is_at_least_one_point_and_grows_with_the_scatter():
    assert paper_tables.reach_of([70.0, 70.0, 70.0]) == 1.0
    assert paper_tables.reach_of([70.0, 72.0, 71.0]) == pytest.approx(2 * stats.t.ppf(0.975, 2) / np.sqrt(3))


@pytest.mark.slow
def test_causal_model_predicts_the_next_words_of_its_training_corpus():
    """After the first word the rest of a text is determined; a token that the corpus lacks is never right."""
    texts = ["red apple pie tastes good", "blue cheese board smells bad", "old iron nail bends fast"] * 80
    # [CLS] red apple pie tastes good [SEP]: of six tokens the first is a guess, which one text of three confirms
    assert next_token.accuracy(texts, texts[:3]) == pytest.approx((3 * 5 + 1) / 18)
    assert next_token.accuracy(texts, ["quantum zebra umbrella"]) <= 1 / 4  # [SEP] alone is known


def test_membership_attacks_find_texts_that_a_model_was_trained_on():
    class Model:
        labels = ("a", "b")

        def probabilities(self, texts):
            return np.array([[0.99, 0.01] if text in remembered else [0.6, 0.4] for text in texts])

    members, others = (Table(tuple(f"{name} {n}" for n in range(40)), ("a",) * 40, None) for name in ("own", "new"))
    remembered = set(members.texts)
    found = papers.attack_model(Model(), members, others)
    assert found["entropy attack"] == found["confidence attack"] == found["entropy area"] == 1.0
    remembered = set()
    assert papers.attack_model(Model(), members, others)["entropy area"] == 0.5
