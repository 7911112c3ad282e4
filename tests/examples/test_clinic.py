"""The clinic's committed files: reproducible, well-formed, skewed between hospitals, and not given away by a word."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.clinic import cases, generate, notes, picture
from undersong_server.report.html import series_chart

DATA = Path(generate.__file__).parent / "data"
SEED = 7
# Streams' names, their stems and what a reader would take for one; "abdo" is a part of the body in every hospital.
LEAKS = re.compile(r"\b(cardiac|respiratory|abdominal|injur\w*|infect\w*|neuro\w*)\b", re.IGNORECASE)


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def hospital_rows() -> dict[str, list[dict[str, str]]]:
    return {hospital.name: rows(f"hospitals/{hospital.name}.jsonl") for hospital in notes.HOSPITALS}


@pytest.mark.slow
def test_committed_clinic_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    generate.main(["--out", str(tmp_path), "--seed", str(SEED)])
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    committed = {path.relative_to(DATA): path.read_bytes() for path in DATA.rglob("*") if path.is_file()}
    assert sorted(written) == sorted(committed)
    differing = [str(name) for name in sorted(written) if written[name] != committed[name]]
    assert not differing, "write them again: python -m examples.clinic.generate --out examples/clinic/data --seed 7"


def test_clinic_files_stay_small_enough_to_commit() -> None:
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 1_500_000


@pytest.mark.heavy
def test_every_clinic_file_has_the_documented_rows_and_columns() -> None:
    for name, private in hospital_rows().items():
        assert len(private) == generate.NOTES_PER_HOSPITAL, name
        assert all(list(row) == ["text", "label", "patient"] for row in private)
    for name in ("test.jsonl", *(f"corpora/{corpus}.jsonl" for corpus in generate.CORPORA)):
        public = rows(name)
        assert len(public) >= 400
        assert all(list(row) == ["text", "label"] for row in public)
        assert {row["label"] for row in public} == set(cases.LABELS)
    for path in DATA.rglob("*.jsonl"):
        assert all(row["text"].strip() and "{" not in row["text"] for row in rows(str(path.relative_to(DATA)))), path


def test_clinic_patients_have_up_to_four_notes_at_one_hospital() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    visits: Counter[str] = Counter()
    for name, private in hospital_rows().items():
        for row in private:
            seen[row["patient"]].add(name)
            visits[row["patient"]] += 1
    assert all(len(where) == 1 for where in seen.values())
    assert max(visits.values()) <= 4
    assert sum(count > 1 for count in visits.values()) >= 50


def test_clinic_hospitals_have_different_label_distributions() -> None:
    largest = set()
    overall = Counter(row["label"] for private in hospital_rows().values() for row in private)
    for name, private in hospital_rows().items():
        mix = Counter(row["label"] for row in private)
        distance = sum(abs(mix[label] / len(private) - overall[label] / 600) for label in cases.LABELS) / 2
        assert distance > 0.08, name
        largest.add(mix.most_common(1)[0][0])
    assert len(largest) >= 4
    assert min(overall.values()) >= 60


@pytest.mark.heavy
def test_no_clinic_note_names_the_generator_group_it_belongs_to() -> None:
    texts = [row["text"] for path in DATA.rglob("*.jsonl") for row in rows(str(path.relative_to(DATA)))]
    assert [text for text in texts if LEAKS.search(text)] == []


def test_no_single_word_reveals_the_group_of_a_clinic_note() -> None:
    private = [row for notes_ in hospital_rows().values() for row in notes_]
    words: dict[str, Counter[str]] = defaultdict(Counter)
    for row in private:
        for word in set(re.findall(r"[a-z]{2,}", row["text"].lower())):
            words[word][row["label"]] += 1
    sizes = Counter(row["label"] for row in private)
    covered = {
        word: count / sizes[label]
        for word, counts in words.items()
        for label, count in counts.most_common(1)
        if count / counts.total() > 0.9
    }
    assert max(covered.values(), default=0.0) < 0.35, max(covered, key=lambda word: covered[word])


def test_clinic_s_private_notes_are_in_no_public_file() -> None:
    public = {
        row["text"] for name in ("test.jsonl", "corpora/handbook.jsonl", "corpora/mixed.jsonl") for row in rows(name)
    }
    assert all(row["text"] not in public for private in hospital_rows().values() for row in private)


@pytest.mark.slow
def test_clinic_labels_are_learnable_but_not_trivial() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    private = [row for notes_ in hospital_rows().values() for row in notes_]
    test = rows("test.jsonl")
    vectors = TfidfVectorizer(sublinear_tf=True).fit([row["text"] for row in private])

    def accuracy(train: list[dict[str, str]]) -> float:
        model = LogisticRegression(max_iter=1000, C=10.0)
        model.fit(vectors.transform([row["text"] for row in train]), [row["label"] for row in train])
        return float(model.score(vectors.transform([row["text"] for row in test]), [row["label"] for row in test]))

    handbook, mixed, offdomain = (accuracy(rows(f"corpora/{name}.jsonl")) for name in generate.CORPORA)
    assert 0.80 < accuracy(private) < 0.97
    assert offdomain + 0.05 < mixed < handbook - 0.1
    assert handbook < accuracy(private)


def test_clinic_picture_is_the_report_s_chart_and_small() -> None:
    shares = {"handbook": [(0.3, 0.0), (0.5, 0.0)], "mixed": [(0.7, 0.0), (0.5, 0.0)]}
    chart = series_chart("Weight of each generator by round", ["0", "1"], shares, percent=True)
    drawn = ElementTree.fromstring(picture.picture(f"<html><body>{chart}<svg></svg></body></html>"))
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}polyline")) == 4  # and a sample of either in the legend
    committed = picture.TARGET.read_bytes()
    assert ElementTree.fromstring(committed).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(committed) < 60_000
    with pytest.raises(SystemExit):
        picture.picture("<html></html>")
