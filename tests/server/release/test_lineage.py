"""The lineage of a corpus: every text of it, and every synthetic text that a request for one showed."""

import json

from undersong_server.pool import Origin, Sample
from undersong_server.release.files import lineage


def sample(text: str, round_: int = 0, kind: str = "zero_shot", label: str = "a") -> Sample:
    return Sample(text, label, "one", round_, kind)


ORIGINS = (
    Origin(sample("root")),
    Origin(sample("unused")),
    Origin(sample("child", 1, "paraphrase"), parents=("root",)),
    Origin(sample("mate", 1)),
    Origin(sample("grandchild", 2, "cross"), parents=("child", "mate"), good=("root", "a public text"), bad=("mate",)),
    Origin(sample("root", 2, "fill_in"), parents=("grandchild",)),  # the same text once more
)


def read_lineage(corpus: tuple[Sample, ...], origins: tuple[Origin, ...] = ORIGINS) -> list[dict[str, object]]:
    return [json.loads(line) for line in lineage(corpus, origins).splitlines()]


def test_lineage_line_names_parents_examples_operator_and_round():
    grandchild = read_lineage((ORIGINS[4].sample,))[-1]
    assert grandchild == {
        "id": 3,
        "row": 0,
        "label": "a",
        "generator": "one",
        "round": 2,
        "operator": "cross",
        "parents": [1, 2],
        "good": [0],
        "bad": [2],
        "public": 1,
    }


def test_lineage_shows_only_the_texts_of_ancestors_outside_the_corpus():
    rows = read_lineage((ORIGINS[4].sample,))
    assert [row.get("text") for row in rows] == ["root", "child", "mate", None]
    assert [row["id"] for row in rows] == [0, 1, 2, 3]
    assert read_lineage((ORIGINS[0].sample,))[0]["parents"] == []  # as it was written first


def test_each_corpus_row_has_one_lineage_line_with_its_label():
    corpus = (sample("grandchild", 2, "cross", "b"), sample("of another package", 3), sample("root"))
    rows = read_lineage(corpus)
    assert sorted(row["row"] for row in rows if "row" in row) == [0, 1, 2]
    by_row = {row["row"]: row for row in rows if "row" in row}
    assert by_row[0]["label"] == "b"
    assert by_row[1] | {"id": 0} == {
        **{"id": 0, "row": 1, "label": "a", "generator": "one", "round": 3, "operator": "zero_shot"},
        **{"parents": [], "good": [], "bad": [], "public": 0},
    }
