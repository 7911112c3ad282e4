"""What a card and a report say of the rows, counted from the corpus alone."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.server.report.test_report import both, run
from undersong_server.evaluation.label_mismatches import LabelMismatches
from undersong_server.pool import Origin
from undersong_server.release.files import _count_mended_labels
from undersong_server.report.html import render_html
from undersong_server.report.rows import EXAMPLES, describe_phrases, describe_rows, example_rows


def run_of(texts, **changes):
    data = run(len(texts), **changes)
    return replace(
        data, samples=tuple(replace(sample, text=text) for sample, text in zip(data.samples, texts, strict=True))
    )


PLAIN = [f"Row {number} says {number * 7} other things." for number in range(40)]


def test_repeated_phrase_is_counted_once_for_each_row():
    repeated = [f"As an AI banking assistant, I answer {number}; as an AI banking assistant." for number in range(10)]
    said = describe_phrases(run_of([*repeated, *PLAIN]))
    assert "10 of 50 rows (20 %) hold a phrase of 5 words that stands in 5 or more rows." in said
    assert 'The most frequent: "ai banking assistant i answer" (10 rows).' in said
    assert said.count("banking") == 1  # not each part of one longer phrase
    assert describe_phrases(run_of([*repeated[:4], *PLAIN])) == "No phrase of 5 words stands in 5 or more rows."


def test_frequent_phrases_that_share_words_are_all_listed():
    kinds = {"old man presents with a": 9, "old woman presents with a": 8, "asked for advice about it": 7}
    repeated = [f"{phrase} {place * 13}." for phrase, rows in kinds.items() for place in range(rows)]
    said = describe_phrases(run_of([*repeated, *PLAIN]))
    further = '"old woman presents with a" (8), "asked for advice about it" (7)'
    assert f'"old man presents with a" (9 rows); then, in rows with none of those before it: {further}.' in said


def test_phrases_of_a_large_corpus_are_counted_in_a_sample_of_rows(monkeypatch):
    monkeypatch.setattr("undersong_server.report.rows.MOST_ROWS", 30)
    said = describe_phrases(run_of(PLAIN))
    assert said == "No phrase of 5 words stands in 5 or more of 30 rows that were drawn."


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("I liked <C> in it.", (1, 0, 0)),
        ("Mr. [NAME] came, [**Name**] left.", (1, 0, 0)),
        ("Dear {{customer}}, thanks.", (1, 0, 0)),
        ("See http://example.test/x.", (0, 1, 0)),
        ("quot; a HREF = x.", (0, 1, 0)),
        ("A line <br /> and one.", (0, 1, 0)),
        ("Profit &amp; loss.", (0, 1, 0)),
        ("He went to the", (0, 0, 1)),
        ('She said "no."', (0, 0, 0)),
        ("Pulse < 60 and > 40, as Mr. X [sic] said.", (0, 0, 0)),
        ("\u7d50\u675f\u3002", (0, 0, 0)),
    ],
)
def test_rows_with_placeholders_markup_or_no_closing_mark_are_counted(text, counts):
    said = " ".join(describe_rows(run_of([text, *PLAIN])))
    placeholders, markup, open_ends = counts
    assert f"{placeholders} row{'' if placeholders == 1 else 's'} with a placeholder" in said
    assert f"{markup} with pieces of links or markup, {open_ends} without a closing mark" in said


def test_label_counts_as_corrected_if_it_differs_from_the_ordered_one():
    samples = run(4).samples
    origins = [Origin(sample) for sample in samples]
    other = replace(samples[0], label="another")
    assert _count_mended_labels(SimpleNamespace(origins=origins, samples=(other, *samples[1:]))) == 1
    assert _count_mended_labels(SimpleNamespace(origins=origins, samples=samples)) == 0
    assert _count_mended_labels(SimpleNamespace(origins=(), samples=samples)) is None


def test_corrected_labels_are_counted_only_when_the_orders_are_known():
    assert "12 rows with another label than was ordered" in " ".join(describe_rows(run(mended_labels=12)))
    assert "No row with another label than was ordered." in describe_rows(run(mended_labels=0))
    assert "than was ordered" not in " ".join(describe_rows(run()))
    assert "than was ordered" not in " ".join(describe_rows(run(labels=(), mended_labels=0)))


@pytest.mark.parametrize("place", [0, 1])
def test_card_and_report_name_rows_that_read_like_another_label(place):
    mismatches = LabelMismatches(60, {12: "ankle", 7: "chest"})
    shown = both(run(mismatches=mismatches))[place]
    assert shown.count(mismatches.sentence) == 1
    assert "2 of 60 rows (3.3 %) read like another label than their own" in shown
    assert "the surest first: row 12 reads like ankle, row 7 reads like chest." in shown
    assert shown.index(mismatches.sentence) < shown.index("What the rows are like") < shown.index("row 12 reads")
    assert "read like another label than their own: not measured" in both(run())[place]
    assert "read like another label" not in both(run(labels=()))[place]


def test_example_rows_are_four_and_depend_only_on_the_plan():
    data = run()
    drawn = example_rows(data)
    assert len({sample.text for sample in drawn}) == 4
    opening = render_html(data).partition('id="may-i"')[0]
    assert "<details" not in opening
    assert all(sample.text in opening for sample in drawn)
    assert drawn == example_rows(data)
    assert set(drawn) <= set(data.samples)
    assert drawn != example_rows(replace(data, plan_hash="cd34"))


@pytest.mark.parametrize("place", [0, 1])
def test_card_and_report_say_what_the_rows_are_like(place):
    shown = both(run())[place]
    assert shown.count("What the rows are like") == 1
    assert "with a placeholder such as" in shown
    assert "What the rows are like" not in both(run(0))[place]


def test_card_quotes_three_of_the_example_rows_of_the_report():
    data = run(60)
    report, card = both(data)
    quoted = re.findall(r'"(text \d+ of a note)" \((?:chest|ankle)\)', card.partition(EXAMPLES)[2].partition("##")[0])
    assert len(quoted) == 3
    assert all(text in report.partition(EXAMPLES)[2] for text in quoted)
    assert EXAMPLES not in both(run(0))[1]
