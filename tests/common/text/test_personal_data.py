"""Names, numbers and dates: what is counted, what is looked up in a private file, and Presidio where there is one."""

import re
from dataclasses import asdict, dataclass

import pytest

from undersong_common.text.personal_data import MODELS, _separate_places, count_personal_data, patterns, presidio


def capitals(text: str) -> list[tuple[str, str]]:
    return [("names", found) for found in re.findall(r"[A-Z][a-z]+", text)]


def test_personal_values_are_counted_and_searched_in_the_private_file() -> None:
    texts = ["Ann saw Bo", "Bo saw nobody", "Hannah left"]
    found = count_personal_data(texts, ["yesterday ann  fell", "Hannahs dog"], capitals, "capitals")
    assert found.found["names"] == 4
    assert found.different["names"] == 3
    assert found.in_private == {"names": 1, "dates": 0, "numbers": 0}  # Hannah is no word of the file, Bo nowhere
    assert found.private_rows == (1,)
    assert "Ann" not in str(asdict(found))
    assert count_personal_data(texts, None, capitals, "capitals").in_private is None


@pytest.mark.heavy
def test_presidio_finds_titled_names_numbers_and_dates_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("presidio_analyzer", reason="the extra `presidio` is not installed")
    spacy = pytest.importorskip("spacy", reason="the extra `presidio` is not installed")
    monkeypatch.setattr(spacy.util, "get_installed_models", lambda: [])
    monkeypatch.setattr("socket.socket.connect", no_network)
    find, finder = presidio()
    assert "without a spaCy model" in finder
    found = list(find("Seen by Dr Jane Brown on 12/03/2024, call 0131 496 0345 or write to a.b@example.org"))
    assert found == [
        ("names", "Dr Jane Brown"),
        ("dates", "12/03/2024"),
        ("numbers", "0131 496 0345"),
        ("numbers", "a.b@example.org"),
    ]
    assert list(find("58M chest pain, BP 120/80 HR 88 SpO2 97%, T 37.2, mild sob")) == []


@dataclass(frozen=True)
class Result:
    """One of Presidio's results."""

    entity_type: str
    start: int
    end: int
    score: float


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("3 March 2021", "dates"),
        ("since June", "dates"),
        ("12/03/24", "dates"),
        ("this morning", ""),
        ("51 year old", ""),
        ("141/84", ""),
        ("Mayfield", ""),
    ],
)
def test_only_calendar_dates_count_among_the_dates_that_a_model_finds(text: str, kept: str) -> None:
    found = _separate_places([Result("DATE_TIME", 0, len(text), 0.85)], text)
    assert [kind for kind, _, _ in found] == [kept] * bool(kept)


def test_a_number_that_a_model_takes_for_a_date_is_a_number() -> None:
    text = "call 020 7946 0018 today"
    found = _separate_places([Result("DATE_TIME", 5, 18, 0.85), Result("PHONE_NUMBER", 5, 18, 0.4)], text)
    assert found == [("numbers", 5, 18)]


def test_longest_of_equally_confident_personal_data_findings_counts() -> None:
    text = "call 020 7946 0018"
    found = _separate_places([Result("PHONE_NUMBER", 9, 18, 0.4), Result("PHONE_NUMBER", 5, 18, 0.4)], text)
    assert found == [("numbers", 5, 18)]


def test_seven_digits_are_a_telephone_number_and_six_are_none() -> None:
    assert list(patterns("call 555 0137, or 4960345; BP 168/101")) == [("numbers", "555 0137"), ("numbers", "4960345")]
    text = "call 555 0137"
    assert _separate_places([Result("PHONE_NUMBER", 5, 13, 0.4)], text) == [("numbers", 5, 13)]


def test_a_blood_pressure_is_no_telephone_number() -> None:
    assert _separate_places([Result("PHONE_NUMBER", 3, 10, 0.4)], "Bp 168/101") == []


@pytest.mark.slow
def test_presidio_uses_a_spacy_model_where_one_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("presidio_analyzer", reason="the extra `presidio` is not installed")
    spacy = pytest.importorskip("spacy", reason="the extra `presidio` is not installed")
    if not set(MODELS) & set(spacy.util.get_installed_models()):
        pytest.skip("no spaCy model is installed")
    monkeypatch.setattr("socket.socket.connect", no_network)
    find, finder = presidio()
    assert "with the spaCy model en_core_web_" in finder
    assert list(find("Seen by Maria Lopez on 3 March 2021, call 020 7946 0018, pain since this morning")) == [
        ("names", "Maria Lopez"),
        ("dates", "3 March 2021"),
        ("numbers", "020 7946 0018"),
    ]


def no_network(*_: object) -> None:
    raise AssertionError("the network was asked")
