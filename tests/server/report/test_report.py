import base64
import hashlib
import io
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console
from rich.text import Text

from tests.doubles.one_page import steps_of
from undersong_common.intervals import Interval
from undersong_common.privacy import accounting, impact
from undersong_common.text.table import Table
from undersong_common.version import VERSION
from undersong_protocol.agreement.participation import Participation
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.agreement.words import NO_GUARANTEE, OF_ANOTHER_PACKAGE, OF_THIS_PROCESS, WRITTEN_BEFORE
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_server.evaluation.evaluate import Distances, EvaluationReport, evaluate_tables
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.generators.author import AuthorUsage
from undersong_server.methods.parts.private_score import SUMS, PrivateScore, ZeroShot
from undersong_server.methods.parts.support import COUNTS, ClassifierTrial
from undersong_server.methods.undersong import CLEANED
from undersong_server.pool import Sample
from undersong_server.release.files import corpus_files, guess_at_all_hospitals
from undersong_server.report import html, screen
from undersong_server.report.answers import (
    IN_BROWSER,
    LICENCE_DECIDES,
    MAKERS_FIGURES,
    MAKERS_WORDS,
    ONLY_LICENCE_BINDS,
    OTHER_ATTEMPTS,
    SIMULATED,
    THE_MAKERS,
    TOLD_FINGERPRINT,
    answers,
)
from undersong_server.report.check_words import CHECK_WORDS
from undersong_server.report.conclusion import FIT_FOR_EXERCISES, NOT_COMPARED, conclude
from undersong_server.report.data import (
    ALONE,
    ZERO_SHOT,
    Accuracy,
    GeneratorUse,
    Measure,
    PrivacyStatement,
    ReportData,
    measures_of,
)
from undersong_server.report.html import render_card, render_html, spread
from undersong_server.report.screen import final_screen
from undersong_server.report.sum_answers import SumAnswer
from undersong_server.report.terms import NOBODY_TO_ASK, OPEN_INSIDE, OPEN_SOURCE, cite_licence, is_example
from undersong_server.report.verdict import FAR_FROM_TASK, HARDLY, UNMEASURED, records_help, verdict
from undersong_server.report.writers import list_writers
from undersong_server.runs.task import PublicationSection

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}`|[bold]"
PRIVACY = PrivacyStatement(Privacy(4.0, 1e-5), Quorum(5, 4, 1, 1), (1.8, 2.6, 3.4, 4.0))


def run(count=60, *, evil=False, labels=("chest", "ankle"), generators=("good", "mixed", "off"), **changes):
    suffix = EVIL if evil else ""
    labels = tuple(label + suffix for label in labels)
    generators = tuple(name + suffix for name in generators)
    label_of = [labels[k % len(labels)] if labels else "" for k in range(count)]
    author_of = [generators[k % len(generators)] for k in range(count)]
    samples = tuple(
        Sample(f"text {k} of a note{suffix}", label_of[k], author_of[k], k * 3 // count, f"zero_shot{suffix}")
        for k in range(count)
    )
    share = 1 / len(generators)
    fields = {
        "run": "clinic 1a2b" + suffix,
        "task": "clinic" + suffix,
        "description": "a nurse's triage note" + suffix,
        "method": "wasp" + suffix,
        "labels": labels,
        "generators": generators,
        "weights": tuple((share,) * len(generators) for _ in range(3)),
        "samples": samples,
        "privacy": PRIVACY,
        "settings": (("votes" + suffix, "8" + suffix),),
        "seconds": (("generation" + suffix, 2.0), ("private sums", 1.0)),
        "usage": tuple(
            GeneratorUse(name, "ngram" + suffix, AuthorUsage(30, 25, 20, 5, 5, notes=Counter({"n" + suffix: 1})))
            for name in generators
        ),
        "accuracy": (
            Accuracy("this corpus" + suffix, 0.9, 0.89, 0.88, 0.87, True),
            Accuracy("private", 0.8, 0.8, 0.8, 0.8),
        ),
        "measures": (
            Measure("accuracy" + suffix, "a share" + suffix, 0.9, "0 to 1" + suffix, "high", percent=True),
            Measure("self-similarity", "cosine", 0.3, "0 to 1", "beside", 0.4, "the test texts'" + suffix),
            Measure("wrong", "w", 0.1, "0 to 1", "low", interval=Interval(0.1, -0.2, 0.4)),
        ),
        "seeds": 5,
        "test_set": "200 notes" + suffix,
        "created": "today" + suffix,
        "version": "0.1" + suffix,
        "plan_hash": "ab12" + suffix,
        "embedder": "packaged" + suffix,
        "remarks": ("a remark" + suffix,),
    }
    return ReportData(**(fields | changes))


class Page(HTMLParser):
    """Every element with its attributes, and the text outside of script and style."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.words, self._inside = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_data(self, data):
        if self._inside and self._inside[-1] not in ("script", "style"):
            self.words.append(data)

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass


def test_every_text_is_escaped_wherever_it_stands():
    source = render_html(run(evil=True))
    page = Page(source)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "49`|" not in source
    shown = "".join(page.words)
    for piece in ("clinic 1a2b", "chest", "good", "text 7 of a note", "200 notes", "a remark", "votes", "ab12"):
        assert piece + EVIL in shown


def test_content_policy_of_the_report_allows_its_own_script_only():
    source = render_html(run())
    script = re.search(r"<script>(.*)</script>", source, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in Page(source).elements if a.get("http-equiv"))
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_report_fetches_nothing_from_a_network():
    source = render_html(run())
    assert not re.search(r"https?://|@import|url\(|//cdn", source)
    for tag, attributes in Page(source).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "image")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_same_data_give_the_same_report_with_its_figures():
    assert render_html(run()) == render_html(run())
    shown = "".join(Page(render_html(run())).words)
    assert "(4, 1e-5)-differentially private for one record" in shown
    assert "90.0 %" in shown
    assert "At most 1 of the 5 hospitals" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        run(labels=()),
        run(generators=("one",)),
        run(1),
        run(2),
        run(measures=()),
        run(accuracy=(), usage=(), seconds=(), settings=(), remarks=(), created="", version="", plan_hash=""),
        run(400, labels=tuple(f"label {k}" for k in range(77)), generators=tuple(f"generator {k}" for k in range(14))),
        run(weights=()),
        run(privacy=replace(PRIVACY, epsilon_after=())),
        run(privacy=replace(PRIVACY, promise=Privacy(4.0, 1e-5, "user", 8, "sum"))),
        run(
            privacy=PrivacyStatement(
                Privacy(4.0, 1e-5, "party"), Quorum(1, 1, 0, 0), (4.0,), epsilon_if_all_others_collude=9.5
            )
        ),
        run(seconds=(("generation", 0.0),)),
    ],
)
def test_report_and_card_render_for_runs_of_every_shape(data):
    page = Page(render_html(data))
    assert len([tag for tag, _ in page.elements if tag == "article"]) == min(len(data.samples), html.SHOWN_TEXTS)
    assert render_card(data).endswith("\n")
    assert "nan" not in "".join(page.words).lower().replace("finance", "")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "change", [{"promise": Privacy(math.inf, 1e-5), "epsilon_after": (math.inf,)}, {"insecure_noise": True}]
)
def test_report_card_and_screen_call_a_run_without_privacy_not_private(change):
    data = run(privacy=replace(PRIVACY, **change))
    shown = "".join(Page(render_html(data)).words)
    assert "Not private" in shown
    assert "-differentially private" not in shown
    card = render_card(data)
    assert "Not private" in card
    assert "Do not release it" in card
    assert "differential-privacy" not in card.split("---")[1]
    assert "Not private" in printed(data)
    for opened in (answers(data)[0].sentences, answers(data)[1].sentences):  # the top, and beside the licence
        assert opened[0] == NO_GUARANTEE
    assert shown.count(NO_GUARANTEE) == 2
    assert any("(nominal:" in term for term, _ in data.privacy.terms)
    scored = replace(data, score=PrivateScore(0.71, 0.64, 0.78, 0.02, 0.03))
    assert "measured privately" not in "".join(Page(render_html(scored)).words) + render_card(scored) + printed(scored)


def test_sample_of_texts_to_browse_covers_every_label_generator_and_round():
    data = run(4000)
    chosen = spread(data.samples, 300)
    assert len(chosen) == 300
    group = lambda s: (s.label, s.generator, s.round)  # noqa: E731
    assert {group(s) for s in chosen} == {group(s) for s in data.samples}
    assert len(set(chosen)) == 300


def test_a_chart_of_series_names_every_figure_and_its_interval():
    drawn = html.series_chart(
        "two methods", ["1", "4"], {"wasp<": [(0.5, 0.1), None], "other": [(0.7, 0.0), (0.8, 0.0)]}, form="points"
    )
    assert re.findall(r"<title>(.*?)</title>", drawn) == [
        *("wasp&lt;, 1: 0.5 ± 0.1", "wasp&lt;", "other, 1: 0.7", "other, 4: 0.8", "other")
    ]
    assert "<polyline" not in drawn
    shares = html.series_chart("shares", ["0", "1"], {"one": [(0.25, 0.0), (0.5, 0.0)]}, percent=True)
    assert "one, 1: 50.0 %" in shares
    assert "<polyline" in shares
    assert html.series_chart("none", [], {}) == ""


def test_epsilon_chart_dashes_planned_values_and_has_a_legend():
    drawn = html.epsilon_chart([], 4.0, [1.0, 2.0, 4.0])
    assert 'class="series planned c0"' in drawn
    assert ">as planned</text>" in drawn
    assert "nothing was opened yet" in drawn
    both = html.epsilon_chart([1.0], 4.0, [1.0, 2.0, 4.0])
    assert 'class="series c1"' in both
    assert ">as it ran</text>" in both
    assert ">as planned and as it ran</text>" in html.epsilon_chart([1.0, 2.0], 4.0, [1.0, 2.0])


def test_chart_lines_differ_in_marker_and_colour_and_equal_lines_merge():
    rows = [(0.1, 0.2, 0.3, 0.4), (0.1, 0.2, 0.3, 0.4)]
    drawn = html.shares_chart("w", "round", ("a", "b", "c", "d"), rows, first_number=1)
    groups = drawn.split('<g class="series')[1:]
    assert len({re.search(r'class="mark" d="([^"]+)"', group)[1] for group in groups}) == 4
    assert len({re.match(r" (c\d)", group)[1] for group in groups}) == 4
    equal = html.shares_chart("w", "round", ("a", "b"), [(0.5, 0.5)], first_number=1)
    assert equal.count('<g class="series') == 1
    assert ">a and b (each)</text>" in equal


def test_chart_axes_are_named_and_rounds_count_from_one():
    page = render_html(run(generators=("a", "b"), weights=((0.5, 0.5), (0.4, 0.6))))
    weights = page.partition('id="weights"')[2].partition("</figure>")[0]
    assert re.findall(r'class="tick middle">(\d+)<|class="tick end">(\d+)</text>', weights)[0] == ("1", "")
    assert ">share</text>" in weights
    assert ">round</text>" in weights
    epsilon = html.epsilon_chart([1.0, 2.0], 4.0, [1.0, 2.0, 4.0])
    assert ">epsilon</text>" in epsilon
    assert ">private sum</text>" in epsilon
    assert ">the run&#39;s budget, 4</text>" in epsilon


# Words of the program and of its statistics, which the first screen explains or does without.
INNER_WORDS = ("points", "sigma", "sensitivity", "survivor", "quorum", "manifest hash", "noise multiplier", "statistic")


def test_first_screen_of_the_report_uses_no_implementation_terms():
    shown = " ".join(sentence for answer in answers(run(**SCORED, participation=LEFT)) for sentence in answer.sentences)
    assert [word for word in INNER_WORDS if re.search(rf"\b{word}\b", shown)] == []
    assert "differentially private" not in shown


def test_every_chart_has_its_figures_as_a_table():
    drawn = html.shares_chart("w", "round", ("one", "two"), [(0.4, 0.6), (0.3, 0.7)], [(), (0.1, 0.1)], first_number=1)
    assert '<th scope="row">2</th><td class="n right">30 ± 20 %</td><td class="n right">70 ± 20 %</td>' in drawn


def test_weights_within_their_error_are_called_equal():
    equal = {"weights": ((0.56, 0.44),), "weight_errors": (0.1, 0.1), "generators": ("a", "b")}
    assert "not distinguishable from equal" in render_html(run(**equal))
    assert "not distinguishable from equal: 44 to 56 %, s.e. up to 10 %" in printed(run(**equal))
    apart = run(**{**equal, "weight_errors": (0.01, 0.01)})
    assert "not distinguishable from equal" not in render_html(apart)
    assert "not distinguishable from equal" not in printed(apart)
    assert "(s.e. 1)" in printed(apart)


def test_the_chart_of_lengths_counts_every_text():
    data = run(5)
    texts = ["one two three"] * 2 + ["one two three four", "nine " * 9, "word " * 400]
    written = [replace(sample, text=text) for sample, text in zip(data.samples, texts, strict=True)]
    drawn = html._draw_lengths(replace(data, samples=tuple(written)))
    titles = re.findall(r"<title>texts, ([^:]+): (\d+)</title>", drawn)
    assert sum(int(count) for _, count in titles) == len(texts)
    assert titles[0] == ("3", "4")  # groups of 16 words
    assert titles[-1] == ("371 or more", "1")
    assert drawn.count('<rect class="bar"') == len(titles)
    assert "<polyline" not in drawn
    assert "more" not in html._draw_lengths(replace(data, samples=tuple(written[:3])))
    assert html._draw_lengths(run(0)) == ""


def test_the_card_is_safe_markdown_and_states_the_terms():
    card = render_card(run(evil=True))
    assert "<script>" not in card
    assert "<img" not in card
    assert card.count("\n---\n") == 1  # the header's end and no other
    for line in card.splitlines():
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 5, 6, 7, 10, 12)
    card = render_card(run())
    for piece in (
        "one record",
        "add/remove",
        "4, 1e-5",
        "At most 1 of the 5 hospitals",
        "| chest | 10 | 10 | 10 | 30 |",
        "| all | 20 | 20 | 20 | 60 |",
        "Written by good",
    ):
        assert piece in card


HOSTILE = "x](https://evil.example) ![y](z) `code` *a* <b> $m$"


def test_report_renders_no_foreign_string_as_code_or_markup():
    keys = ("makers", "contact", "intended_use", "limits", "trained_models", "records")
    terms = PublicationSection(**dict.fromkeys(keys, HOSTILE))
    hostile = run(
        task=HOSTILE,
        description=HOSTILE,
        test_set=HOSTILE,
        remarks=(HOSTILE,),
        publication=terms,
        publisher=(HOSTILE, "1a"),
    )
    card = render_card(hostile)
    kinds = {token.type for block in MarkdownIt().parse(card.split("---", 2)[2]) for token in block.children or ()}
    assert not kinds & {"image", "em_open", "html_inline"}
    links = [
        token.attrs["href"]
        for block in MarkdownIt().parse(card.split("---", 2)[2])
        for token in block.children or ()
        if token.type == "link_open"
    ]
    assert set(links) == {"#privacy"}
    code = [
        token.content
        for block in MarkdownIt().parse(card.split("---", 2)[2])
        for token in block.children or ()
        if token.type == "code_inline"
    ]
    assert {f"pip install undersong=={VERSION}", "--test FILE"} <= set(code)
    assert "code" not in code
    source = render_html(hostile)
    assert f"<code>pip install undersong=={VERSION}</code>" in source
    assert "<code>code</code>" not in source
    assert "evil.example" not in "".join(str(attributes) for _, attributes in Page(source).elements)


OTHER_DISTANCES = (
    *("self_similarity", "reference_self_similarity", "distinct_bigrams", "reference_distinct_bigrams", "vendi"),
    *("reference_vendi", "next_word_before", "next_word_after", "length"),
)


@pytest.mark.parametrize("place", [0, 1])
def test_distances_state_which_value_is_good_and_what_is_compared(place):
    zeros = dict.fromkeys(OTHER_DISTANCES, 0.0)
    distances = Distances(reference="test", rows=9, frechet=0.378, mauve=0.037, **zeros)
    measures = measures_of(EvaluationReport("x", 9, (), (distances,), None, None, ()))
    shown = both(run(measures=measures))[place]
    assert "how far mean and spread of the embeddings are from the test texts'" in shown
    assert "how far the two sets are one distribution" in shown
    assert "MAUVE 0.037, where equal sets have 1." in shown


WEAK = {"recall": 0.321, "precision": 0.119, "coverage": 0.173, "density": 0.057, "MAUVE": 0.032}


@pytest.mark.parametrize("place", [0, 1])
def test_weaknesses_of_a_corpus_are_listed_under_training(place):
    measures = [Measure(name, f"what {name} tells", value, "0 to 1", "high") for name, value in WEAK.items()]
    measures.append(Measure("doubtful labels", "what is doubted", 0.008, "0 to 100 %", "low", percent=True))
    terms = PublicationSection(contact="a@b.org")
    remarks = (f"Published: all texts, {CLEANED}.",)
    own = replace(SCORED["accuracy"][0], by_label={"chest": 0.912, "ankle": 0.745})
    scored = {**SCORED, "remarks": remarks, "measures": tuple(measures), "publication": terms, "accuracy": (own,)}
    data = run(**scored, test_set="test.jsonl", test_hash="68bc")
    (answer,) = (answer for answer in answers(data) if answer.anchor == "train")
    told, shown = " ".join(answer.sentences), both(data)[place]
    assert len(answer.sentences) <= 8
    for words in (
        "Read some texts of each label first",
        "No phrase of 5 words stands in",
        "0.8 % of the labels are doubtful",
        "Doubtful texts stayed in the corpus. A text was left out only where models of words contradict its label,"
        " too.",
        "The corpus looks little like the test texts of test.jsonl: about 12 of 100 corpus texts lie where test texts"
        " lie (precision 0.119)",
        "about 32 of 100 test texts lie where corpus texts lie (recall 0.321)",
        "about 17 of 100 test texts have a corpus text near (coverage 0.173; about 0.97 in two halves of one set)",
        "density 0.057 and MAUVE 0.032, where equal sets have 1.",
        "a model that counts words 92.0 %",
        "By label: ankle 74 %, chest 91 %. What models reach that learn from real texts: not measured.",
    ):
        assert words in told
        assert words in shown
    good = next(answer for answer in answers(data) if answer.anchor == "good").sentences
    assert "; not a stand-in for the test texts, which it looks little like; " in good[0]
    assert good[2] == ("Whether the test texts are real, and where they are from, these files do not say: ask a@b.org.")
    stated = replace(data, test_source="Invented notes, CC0-1.0.")
    good = next(answer for answer in answers(stated) if answer.anchor == "good").sentences
    assert good[2] == "The test texts, as the makers state: Invented notes, CC0-1.0."
    taught = GeneratorUse("good", "ngram", AuthorUsage(30), source="Invented notes, CC0-1.0")
    good = next(answer for answer in answers(replace(stated, usage=(taught,))) if answer.anchor == "good").sentences
    assert "The same is stated of the texts of good: whether good has learned from the test texts, which" in good[2]
    assert "The test file is not in this folder. Its SHA-256 is 68bc." in shown
    unmeasured = next(answer for answer in answers(run(accuracy=(), labels=())) if answer.anchor == "train")
    assert len(unmeasured.sentences) == 2  # what to read, and its phrases


@pytest.mark.parametrize("place", [0, 1])
def test_comparison_explains_what_its_zero_shot_texts_are(place):
    zero_shot = Accuracy(ZERO_SHOT, 0.6, 0.6, 0.6, 0.6, reference=True)
    compared = {**SCORED, "accuracy": (*SCORED["accuracy"][:1], zero_shot)}
    shown = both(run(**compared))[place]
    assert "texts are from good, mixed and off in equal parts, also from those whose texts the records set" in shown
    assert "bear zero_shot as prompt_kind because their prompts showed no other text" in shown
    assert "bear zero_shot" not in both(run(**SCORED))[place]


@pytest.mark.parametrize("place", [0, 1])
def test_each_epsilon_of_the_promise_is_explained_in_words(place):
    privacy = replace(
        PRIVACY, epsilon_if_all_others_collude=21.97, best_guess=0.678, best_guess_if_all_others_collude=0.99
    )
    shown = both(run(privacy=privacy))[place]
    assert impact.guess(0.678, "one record") in shown
    leading = next(answer for answer in answers(run(privacy=privacy)) if answer.anchor == "promise").sentences[0]
    assert impact.worst_guess(4.0, 1e-5) not in leading
    assert (
        "68 and 99.1, the two figures of a reader about one hospital, both hold: the first is an average over all"
        in shown
    )
    assert replace(privacy, best_guess=0.678).guesses.rows[1][0] == f"the same, {impact.nearly_all(1e-5)}"
    unknown = next(answer for answer in answers(run()) if answer.anchor == "promise").sentences[0]
    assert impact.worst_guess(4.0, 1e-5) in unknown
    assert "99 (practically no protection)" in shown
    assert "its epsilon is at most 21.97 as planned. undersong verify states it as it ran. As" in shown.replace("`", "")
    assert OTHER_ATTEMPTS in shown


@pytest.mark.parametrize("place", [0, 1])
def test_worst_case_epsilon_as_it_ran_is_stated_with_its_best_guess(place):
    ran = replace(
        PRIVACY,
        epsilon_if_all_others_collude=21.97,
        epsilon_against_all_as_it_ran=7.632,
        best_guess_against_all_as_it_ran=0.785,
    )
    shown = both(run(privacy=ran))[place].replace("`", "")
    assert "As it ran it is 7.632, by undersong verify. As planned," in shown
    rows = dict(replace(ran, best_guess=0.678).guesses.rows)
    assert rows["the same colluders, as it ran"] == "79"


def test_best_guess_of_probability_one_is_called_no_protection():
    """It stands beside the rare run's certainty of the same size, of which nothing is said on average."""
    promise = Privacy(1000.0, 1e-5)
    rows = dict(replace(PRIVACY, promise=promise, best_guess=1.0, best_guess_if_all_others_collude=1.0).guesses.rows)
    protection_words = impact.protection_words(1.0)
    assert [right.endswith(protection_words) for right in rows.values()] == [True, False, True]


@pytest.mark.parametrize("place", [0, 1])
def test_promise_states_a_yardstick_and_the_run_that_it_replaces(place):
    shown = both(run(earlier="It replaces the run 'one', in which the records were asked."))[place]
    assert impact.yardstick() in shown
    assert "It replaces the run 'one', in which the records were asked." in shown


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("licence", "says"),
    [
        (
            "CC-BY-4.0",
            "Yes, by the licence, CC-BY-4.0: it lets you publish the texts, changed texts, and models that you train on"
            " them, also in a product that you sell, if you give credit, link the licence and say if you changed the"
            " texts.",
        ),
        ("CC-BY-NC-4.0", "link the licence and say if you changed the texts, but not for money."),
        ("House terms", "it says itself."),
    ],
)
def test_licence_answer_states_permission_credit_line_and_purpose(place, licence, says):
    terms = PublicationSection(makers="clinics", licence=licence)
    shown = both(run(publication=terms, purpose="To teach.", usage=()))[place]
    assert says in shown
    assert f', by clinics, {cite_licence(licence)}".' in shown
    assert "Purpose, as the hospitals approved it: To teach." in shown


@pytest.mark.parametrize(
    ("contact", "operator", "whom"),
    [
        ("data@clinics.org", "+44 20", "data@clinics.org"),
        ("data@clinics.example", "+44 20", "+44 20"),
        ("https://www.example.org/", "+44 20", "+44 20"),
        ("data@clinics.example", "", ""),
        ("data@clinics.example", "+44 20 7946 0018", ""),
        ("", "+44 (0)20 7946 0018", ""),
        ("latest@test.com", "+44 20", "latest@test.com"),
        ("", "+44 20", "+44 20"),
        ("", "", "the makers"),
    ],
)
def test_report_names_only_contacts_that_can_answer(contact, operator, whom):
    terms = PublicationSection(licence="CC-BY-4.0", limits="Not for care.", contact=contact)
    data = run(publication=terms, operator=("Nordbrook", operator), test_hash="68bc", publisher=("one", "1a2b-3c4d"))
    for shown in both(data):
        assert (f"these files do not say: ask {whom}" in shown) == bool(whom)
        for nobody in (NOBODY_TO_ASK, CHECK_WORDS["nobody confirms"]):
            assert (nobody in shown) != bool(whom), nobody
        assert "one that is copied from these files" in shown
        assert (" ask " in shown.partition("How good it is")[2].partition("What is in it")[0]) == bool(whom)
        marks = sum(map(is_example, (contact, operator)))
        assert shown.count("an example, which leads to nobody") == marks


@pytest.mark.parametrize("contact", ["data@clinics.org", "data@clinics.example"])
def test_report_asks_for_a_fingerprint_only_with_a_reachable_contact(contact):
    data = run(publication=PublicationSection(contact=contact), publisher=("one", "1a2b-3c4d"))
    can_ask = contact.endswith("org")
    answer = next(answer for answer in answers(data) if answer.anchor == "check")
    compared = ("Compare it with 1a2b-3c4d", TOLD_FINGERPRINT, "--party NAME", "fingerprint that you were told")
    assert [words in " ".join((*answer.sentences, answer.command)) for words in compared] == [can_ask] * 4
    assert answer.command.startswith("undersong verify .")
    assert ('id="told"' in render_html(data)) is can_ask


@pytest.mark.heavy
@pytest.mark.parametrize(("count", "is_partial"), [(400, True), (60, False)])
def test_search_of_the_report_says_how_many_texts_it_covers(count, is_partial):
    source = render_html(run(count))
    assert f'data-texts="{count}"' in source
    assert f"{min(count, html.SHOWN_TEXTS)} of the corpus's {count} texts" in source.replace("&#39;", "'")
    assert ("(searches the 300 texts that are on this page)" in source) is is_partial


def test_place_of_publication_at_an_example_domain_is_marked_as_example():
    for where, is_marked in (("https://a.example/triage, open", True), ("https://a.org/example, open", False)):
        shown = both(run(publication=PublicationSection(makers="clinics", contact="a@b.org", where=where)))[0]
        assert (f"{where}; an example, which leads to nobody" in shown) is is_marked


@pytest.mark.parametrize("place", [0, 1])
def test_report_says_once_whether_the_makers_limits_are_binding(place):
    terms = PublicationSection(licence="CC-BY-4.0", limits="Not for care.")
    shown = both(run(publication=terms))[place]
    assert f"{ONLY_LICENCE_BINDS} Limits: Not for care." in shown
    assert shown.count("Limits: ") == shown.count("advice") == 1
    other = both(run(publication=terms.model_copy(update={"licence": "House terms"})))[place]
    assert f"{LICENCE_DECIDES} Limits: Not for care." in other
    unlicensed = both(run(publication=terms.model_copy(update={"licence": ""})))[place]
    assert f"{MAKERS_WORDS} Limits: Not for care." in unlicensed
    assert "binds you" not in unlicensed
    assert "binds you" not in both(run(publication=PublicationSection(licence="CC-BY-4.0")))[place]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("licence", ["CC-BY-4.0", "House terms", ""])
def test_unknown_source_licence_is_stated_before_what_is_allowed(place, licence):
    terms = PublicationSection(makers="clinics", licence=licence)
    usage = tuple(GeneratorUse(name, "ngram", AuthorUsage(30)) for name in ("good", "mixed", "off"))
    shown = both(run(publication=terms, usage=usage))[place]
    permission = shown[shown.index(OPEN_SOURCE) :].partition(f"{OPEN_INSIDE} ")[2]
    says = {"CC-BY-4.0": "The corpus's own licence, CC-BY-4.0, then lets", "": "For the corpus itself its makers have"}
    assert permission.startswith(says.get(licence, "The corpus's own licence is House terms: whether"))
    assert shown.count(OPEN_SOURCE) == 1


@pytest.mark.parametrize("place", [0, 1])
def test_report_states_limits_of_trained_models_and_origin_of_records(place):
    terms = PublicationSection(contact="a@b.org", trained_models="No limit holds.", records="Invented notes.")
    shown = both(run(publication=terms))[place]
    assert f"{MAKERS_WORDS} Models trained on the texts: No limit holds." in shown
    assert "The records, as the makers state them: Invented notes." in shown
    silent = both(run(publication=PublicationSection(contact="a@b.org")))[place]
    assert f"{MAKERS_WORDS} " not in silent
    assert "the makers have not stated: ask a@b.org before you use such a model." in silent
    assert "Take them for records of real patients" in silent
    assert "no real person is protected" not in shown
    assert "demonstration" not in shown
    example = PublicationSection(contact="a@b.example", invented_records=True)
    warning = "is invented. Its contacts are examples: nobody here can be asked, and nothing shows"
    assert warning in both(run(publication=example))[place]
    invented = both(run(publication=PublicationSection(invented_records=True)))[place]
    assert invented.count("This is a demonstration: by the makers' word alone, every record behind it is inv") == 1
    assert invented.index("This is a demonstration") < invented.index("What it is")
    assert "Take them for records of real patients" not in invented
    assert "If every record is invented, no real person is protected" in invented
    assert "ask the makers before you use such a model" in both(run(publication=PublicationSection()))[place]


@pytest.mark.parametrize("place", [0, 1])
def test_privacy_table_lists_how_often_each_observers_guess_is_right(place):
    exposed = {
        "best_guess": 0.678,
        "best_guess_if_all_others_collude": 0.97,
        "best_guess_against_all_as_it_ran": 0.83,
        "best_guess_at_all_hospitals": 0.995,
    }
    promise = replace(PRIVACY.promise, unit="user", max_per_unit=4, contribution="mean")
    data = run(privacy=replace(PRIVACY, promise=promise, **exposed))
    answer = next(answer for answer in answers(data) if answer.anchor == "promise")
    rows = answer.table[1:]
    assert [right for _, right in rows] == ["68", "99.1", "99.5 (practically no protection)", "97", "83"]
    for words, (whose, _) in zip(("patient", "all but", "all 5 hospitals", "planned", "ran"), rows, strict=True):
        assert words in whose
    assert all(whose in both(data)[place] for whose, _ in rows)
    assert both(data)[place].count(impact.SEVERAL_HOSPITALS) == 1
    assert '<a href="#privacy">Privacy</a>' in render_html(data)
    assert next(answer for answer in answers(run()) if answer.anchor == "promise").table == ()


def test_guess_about_a_patient_of_several_hospitals_needs_the_unit_user():
    statistic = LabelHistogram(labels=2)
    for unit, is_stated in (("user", True), ("sample", False)):
        plan = plan_sums([SumRequest("labels", statistic)], replace(PRIVACY.promise, unit=unit), PRIVACY.quorum)
        several = guess_at_all_hospitals(plan)
        assert (several is not None) is is_stated
        one = accounting.best_guess(plan.charged_events())
        assert several is None or one < several < 1.0


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_baseline_of_one_generator_alone_is_explained_beside_it(place):
    alone = Accuracy(ALONE.format("one"), 0.7, 0.7, 0.7, 0.7, reference=True)
    with_alone = {**SCORED, "accuracy": (*SCORED["accuracy"], alone)}
    assert "texts of one alone, ordered anew, reach 70.0 %" in both(run(**with_alone))[place]
    assert "The records chose it, but somebody who reads a few" in both(run(**with_alone))[place]
    assert "The records chose it" not in both(run(**SCORED))[place]


def test_the_private_score_names_the_hospitals_that_measured_it():
    sums = (("first", ("north", "south", "west")), (SUMS[0], ("north", "south")))
    some = Participation(("north", "south", "west"), sums)
    for shown in both(run(**{**SCORED, "participation": some})):
        assert "over the records of 2 hospitals alone: north and south." in shown
    assert "hospitals alone" not in both(run(**SCORED))[0]


def test_report_states_each_score_once_under_its_question():
    encoder = Accuracy("this corpus", 0.87, 0.86, 0.85, 0.84, model="an encoder")
    for data, untold in ((run(**SCORED), 0), (run(**{**SCORED, "accuracy": (*SCORED["accuracy"], encoder)}), 1)):
        for shown in both(data):
            figures = ("77 %", "90.0 % (", "words 92.0 %", "87.0 %")
            assert [shown.count(figure) for figure in figures] == [1, 1, 1, untold]
            assert "balanced" in shown


def test_report_header_names_hospitals_and_their_last_sum():
    head = render_html(run(participation=LEFT)).partition("</header>")[0]
    assert "north, south, west (until sum 2 of 6)" in head
    assert "until sum" not in render_html(run()).partition("</header>")[0]


def test_card_and_report_name_hospitals_in_full_where_the_plan_does():
    named = replace(LEFT, full_names={"south": "South <b>Hospital, Porto"})
    for shown in both(run(participation=named, publisher=("one", "1a2b-3c4d"))):
        assert re.search(r"3 hospitals: north, south \(South (<|&lt;)b(>|&gt;)Hospital, Porto\), west\.", shown)
        assert "such as north, south (South" in shown


def test_report_states_each_measure_once():
    names = ("panel score", "recall", "coverage")
    measures = tuple(Measure(name, f"what {name} tells", 0.5, "0 to 1", "high") for name in names)
    shown = both(run(**SCORED, test_set="test.jsonl", measures=measures))[0]
    assert [shown.count(f"what {name} tells") for name in names] == [0, 1, 1]  # the panel has a table of its own
    unlabelled = both(run(measures=measures, accuracy=()))[0]
    assert [unlabelled.count(f"what {name} tells") for name in names] == [1, 1, 1]


def test_card_names_makers_contact_and_how_to_verify():
    terms = PublicationSection(makers="Five <b>clinics", contact="data@clinics.org")
    card = render_card(run(publication=terms, publisher=("north", "1a2b-3c4d")))
    makers_words = "Published in the name of Five &lt;b&gt;clinics (contact: data@clinics.org)."
    assert f"{makers_words} {THE_MAKERS}" in card
    assert "data@clinics.org" in card
    assert "undersong verify . --fingerprint FINGERPRINT-YOU-WERE-TOLD" in card
    assert "--fingerprint 1a2b" not in card  # which would be compared with itself
    took_part = Participation(("north", "south", "west", "east"), ())
    asked = replace(run(publication=terms, publisher=("one", "1a2b-3c4d")), operator=("Nordbrook", "Dr. Weller, +44"))
    for shown in both(asked):
        assert "Run by Nordbrook (contact: Dr. Weller, +44), by the plan that every hospital has signed." in shown
        assert "or by the operator (Dr. Weller, +44), over a number" in shown
        assert "--party NAME=FINGERPRINT" in shown
    for shown in both(replace(asked, simulated=True, publisher=("", ""))):
        assert "Run by Nordbrook (contact: Dr. Weller, +44). Published" in shown
        assert "--party" not in shown
    for shown in both(run(publication=terms, publisher=("one", "1a2b-3c4d"), participation=took_part)):
        assert (
            "read to you by a hospital that took part, such as north, south, west, or by the makers"
            " (data@clinics.org), over a number or an address that you look up elsewhere"
        ) in shown
        assert ",," not in shown
        assert "Compare it with 1a2b-3c4d, all eight groups" in shown
    signed_report, signed_card = both(run(publisher=("one", "1a2b-3c4d")))
    assert (IN_BROWSER in signed_report, IN_BROWSER in signed_card) == (False, True)
    assert "may have changed this page, too" in signed_report  # beside the box for the files
    assert 'id="told"' in render_html(run(publisher=("one", "1a2b-3c4d")))
    assert f"{CHECK_WORDS['copied']} The files are compared with it" in signed_report
    assert 'id="told"' not in render_html(run())
    unnamed = render_card(run(publisher=("north", "1a2b-3c4d")))
    assert "Published in the name of north." in unnamed
    nobody = render_card(run())
    assert "--fingerprint" not in nobody
    assert THE_MAKERS not in nobody
    assert "Its makers have not named themselves. They have stated no contact." in nobody
    assert "themselves. Contact: a@b.org." in render_card(run(publication=PublicationSection(contact="a@b.org")))


TITLES = ["What it is", "May I use it", "What is promised", "How good it is", "Before you train", "How to check it"]
SCORED = {
    "score": PrivateScore(0.77, 0.73, 0.81, 0.01, 0.02),
    "accuracy": (
        Accuracy(
            *("this corpus", 0.9, 0.9, 0.9, 0.9, True),
            model="panel: words 92.0 %",
            by_texts=Interval(0.9, 0.85, 0.94),
            by_model={"words": 0.92},
        ),
        Accuracy("zero-shot mixture", 0.6, 0.6, 0.6, 0.6, reference=True),
    ),
    "remarks": ("7 texts of one generator are set aside, in set-aside.jsonl: 7 of off.",),
    "set_aside": 7,
    "support_measured": True,
}
LEFT = Participation(
    ("north", "south", "west"),
    tuple((f"sum/{n}", ("north", "south", "west")[: 3 if n < 3 else 2]) for n in range(1, 7)),
)


def both(data):
    """The words of report and card of the same run, in this order."""
    return " ".join("".join(Page(render_html(data)).words).split()), " ".join(
        render_card(data).replace("\\", "").split()
    )


def test_card_and_report_begin_with_the_answers_in_the_same_order():
    page = Page(render_html(run(**SCORED)))
    assert re.findall("|".join(TITLES), "".join(page.words))[: len(TITLES)] == TITLES
    assert re.findall(r"^## (.*)$", render_card(run(**SCORED)), re.MULTILINE)[: len(TITLES)] == TITLES


@pytest.mark.parametrize("place", [0, 1])
def test_card_and_report_answer_with_the_figures_of_their_run(place):
    terms = PublicationSection(makers="clinics", contact="a@b.org", licence="CC-BY-4.0", intended_use="teaching")
    shown = both(run(**SCORED, publication=terms, publisher=("north", "1a2b-3c4d"), participation=LEFT))[place]
    for words in (
        *("77 % of cases (73 to 81)", "90.0 % (85.0 to 94.0)", "words 92.0 %", "zero-shot mixture reach 60.0 %"),
        *(
            "7 texts of one generator are set aside",
            "own licence, CC-BY-4.0, then lets",
            "a@b.org",
            f"{ONLY_LICENCE_BINDS} Intended use: teaching.",
        ),
        *("undersong verify . --fingerprint FINGERPRINT-YOU-WERE-TOLD", "3 hospitals: north, south, west"),
        "west took part until sum 2 of 6 ('sum/2'); the 4 sums after it were opened without it.",
        "Opened: 4 sums of 2 hospitals, 2 sums of 3 hospitals.",
    ):
        assert words in shown


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_card_and_report_ask_every_question_once(place):
    clauses = tuple(f"how many of your records are {kind}" for kind in ("long", "short", "old", "new", "odd"))
    told = [clause.replace("your", "their") for clause in clauses]
    answered = tuple(SumAnswer(f"sum/{number}", clause, "Answer: 7.", "") for number, clause in enumerate(told))
    shown = both(run(questions=clauses, sum_answers=answered))[place]
    assert "your records" not in shown
    assert [shown.count(clause) for clause in told] == [2, 2, 2, 1, 1]  # three of them on the first screen, too
    assert 'and 2 more, under "What each private sum gave".' in shown
    assert f"{told[2]}; and {told[3]}." in both(run(questions=clauses[:4]))[place]
    assert "What each private sum gave" not in both(run(questions=clauses[:3]))[place]


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_sums_that_a_hospital_missed_are_named_by_their_number(place):
    questions = ("how many of your records are long", "how many of your records are old")
    asked = tuple((name, questions[number > 2]) for number, (name, _) in enumerate(LEFT.sums, 1))
    data = run(questions=questions, sum_questions=asked, participation=LEFT)
    told = "'sum/1' 1, 'sum/2' 1, 'sum/3' 2, 'sum/4' 2, 'sum/5' 2 and 'sum/6' 2. Why a hospital left, these files do"
    assert told in both(data)[place]
    whole = Participation(("north", "south"), (("sum/1", ("north", "south")),))
    assert "The sums in order" not in both(replace(data, participation=whole))[place]


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_card_and_report_list_files_and_first_words_of_set_aside_texts(place):
    files = (("lineage.jsonl", "of each text its origin"), ("rounds.csv", f"figures {EVIL}"))
    starts = (("off", "Guest in room 349"), ("mixed", f"A parcel {EVIL}"))
    data = run(files=files, aside_starts=starts, has_unread_score=True)
    shown = both(data)[place]
    assert "The files" in shown
    assert "lineage.jsonl: of each text its origin" in shown
    assert 'Set aside were texts such as: "Guest in room 349" (off); "A parcel' in shown
    assert "not measured, since no sum counted the records of just those hospitals that are in the sum" in shown
    assert "<script>alert" not in (render_html, render_card)[place](data)
    assert "Set aside were" not in both(run())[place]


def test_summary_states_texts_epsilon_and_only_measured_scores():
    assert run(**SCORED).summary == "60 texts, epsilon 4, panel 90.0 %, private score 77.0 %"
    assert run(**{**SCORED, "score": None}).summary == "60 texts, epsilon 4, panel 90.0 %"
    assert run(1, accuracy=()).summary == "1 text, epsilon 4"
    assert (
        run(privacy=replace(PRIVACY, promise=Privacy(math.inf, 1e-5)), accuracy=()).summary == "60 texts, not private"
    )


@pytest.mark.parametrize("place", [0, 1])
def test_report_says_in_place_of_an_unmeasured_figure_that_it_is_missing(place):
    shown = both(run(accuracy=(), measures=(), test_set="", remarks=()))[place]
    assert "On the hospitals' own records: not measured." in shown
    assert "On a test file of real texts: not measured: the task names none." in shown
    assert "Whether the texts are of the task's kind: not measured." in shown
    assert "Distance to a public test file: not measured." in shown


def test_report_mentions_no_absence_when_every_hospital_is_in_every_sum():
    whole = Participation(("north", "south"), (("a", ("north", "south")),))
    assert "took part until" not in both(run(participation=whole))[1]


def test_figure_from_private_records_is_printed_but_not_published():
    private = Accuracy("own notes", 0.777, 0.777, 0.777, 0.777, reads_private=True)
    data = run(accuracy=(private,))
    assert "77.7" in printed(data, width=120)
    assert "not private" in printed(data, width=120)
    assert "77.7" not in render_html(data)
    assert "77.7" not in render_card(data)


def test_every_measure_states_its_scale_and_which_value_is_good():
    page = Page(render_html(run()))
    shown = " ".join("".join(page.words).split())
    for words in (
        "90.0 %",
        "high is good",
        "good near the mark",
        "low is good",
        "the test texts' 0.400",
        "5 seeds",
        "-0.200 to 0.400",
    ):
        assert words in shown
    assert "Measures of the texts" not in "".join(Page(render_html(run(measures=()))).words)


@pytest.mark.slow
def test_measures_do_not_depend_on_private_files():
    rng = np.random.default_rng(3)
    words = [f"w{number}" for number in range(40)]

    def table(count):
        texts = tuple(" ".join(rng.choice(words, 8)) for _ in range(count))
        return Table(texts, tuple("ab"[row % 2] for row in range(count)), None)

    def embed(texts):
        x = np.array([[text.split().count(word) for word in words] for text in texts], dtype=np.float32)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    corpus, test, private = table(60), table(50), table(50)
    report = evaluate_tables(
        "run", corpus, EvaluationOptions(test=test, train_private=private, overlap=private, repeats=2), embed=embed
    )
    found = {each.name: each for each in measures_of(report)}
    assert found["panel score"].value == report.trained[0].interval("accuracy").value
    assert found["MAUVE"].value == report.distances[0].mauve  # of the test file, not of the private one
    assert found["Vendi score"].mark == report.distances[0].reference_vendi
    assert found["doubtful labels"].interval is not None
    assert found["coverage"].interval is None  # nothing was trained for it
    assert len(found) == 17
    alone = evaluate_tables("run", corpus, EvaluationOptions(test=test, repeats=2), embed=embed)
    # A private file changes none of them; as text, for a figure that nobody has (NaN) equals none.
    assert repr(measures_of(alone)) == repr(measures_of(report))


def printed(data, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(final_screen(data, Path("runs/clinic")))
    return console.export_text()


@pytest.mark.parametrize("generators", [("one",), ("good", "mixed", "off"), tuple(f"generator {k}" for k in range(20))])
def test_final_screen_has_at_most_ten_lines(generators):
    shown = printed(run(300, generators=generators), width=100)
    assert len(shown.splitlines()) <= 10
    assert "..." not in printed(run(300, generators=generators), width=40)  # folded, never cut
    assert "epsilon 4 of 4" in shown
    assert "90.0 %" in shown
    assert str(Path("runs/clinic/report.html")) in shown
    assert "[bold]" in printed(run(evil=True), width=200)


def test_final_screen_names_three_generators_beside_many_scores(monkeypatch):
    monkeypatch.setattr(screen, "_accuracy_lines", lambda _data: [Text("a score")] * 6)
    shown = printed(run(300, generators=("good", "mixed", "off")))
    assert all(f"weights   {name}" in shown or f"          {name}" in shown for name in ("good", "mixed", "off"))


def test_final_screen_states_lost_answers_and_missing_usage():
    data = run()
    counts = AuthorUsage(30, 25, 20, 5, 5, lost=4, notes=Counter({"usage not reported": 3}))
    shown = printed(replace(data, usage=(replace(data.usage[0], count=counts),)), width=300)
    assert "4 answers lost on the way" in shown
    assert "usage not reported: 3" in shown
    assert "not reported" not in printed(data, width=300)


def test_card_states_what_its_makers_declared_and_what_they_left_open():
    silent = render_card(run())
    assert "stated no licence: ask the makers before" in silent
    assert "license" not in silent.split("---")[1]
    said = PublicationSection(
        licence="CC-BY-4.0", language="de-AT", intended_use="to train *classifiers*", limits="only one <hospital>"
    )
    card = render_card(run(publication=said, usage=()))
    head = card.split("---")[1]
    assert 'license: "cc-by-4.0"' in head
    assert 'language: ["de-AT"]' in head
    assert "to train \\*classifiers\\*" in card
    assert "only one &lt;hospital&gt;" in card
    own = render_card(run(publication=PublicationSection(licence="ask the <ethics board>")))
    assert "license: other" in own.split("---")[1]
    assert "<ethics" not in own


@pytest.mark.parametrize(
    ("place", "package", "expected"), [(0, "pandas", "chest"), (1, "datasets", "text 0 of a note")]
)
def test_code_snippets_of_the_card_run_unchanged(place, package, expected, tmp_path, monkeypatch, capsys):
    pytest.importorskip(package)
    data = run(60)
    for name, content in corpus_files(data.samples).items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    snippets = re.findall(r"```python\n(.*?)```", render_card(data), re.DOTALL)
    assert len(snippets) == 2
    exec(compile(snippets[place], "the card", "exec"), {})
    assert expected in capsys.readouterr().out


def test_receiver_documentation_has_the_questions_of_the_first_screen():
    titles = [answer.title for answer in answers(run())]
    assert steps_of("receiver") == titles
    for title in titles:
        assert title in render_html(run())


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_report_accounts_for_every_kept_text_and_explains_rounds_once(place):
    data = run(usage=(GeneratorUse("good", "ngram", AuthorUsage(80, kept=75)),), set_aside=7)
    published = len(data.samples)
    shown = both(data)[place]
    left_out = f"method left out {75 - published - 7} of the 75 texts that were kept when they were written."
    assert f"Beside the texts set aside, the {left_out}" in shown
    assert "the method left out" not in both(replace(data, set_aside=75 - published))[place]
    assert "They are in no file: under a label that models contradict, not chosen, more than the task asks" in shown
    counts = {"contradicted": 68 - published, "not chosen": 0, "surplus": 0}
    counted = both(replace(data, unpublished_counts=counts))[place]
    assert f"They are in no file: {68 - published} under a label that models contradict." in counted
    none = both(replace(data, set_aside=0, support_measured=True))[place]
    assert f"No text is set aside for its subject. The method left out {75 - published} of the 75 texts" in none
    assert none.count("set aside") == 1
    unknown = both(replace(data, set_aside=0))[place]
    assert "set aside" not in unknown
    assert "Whether the texts are of the task's kind: not measured." in unknown
    assert "No text is set aside for its subject." in both(run(usage=(), support_measured=True))[place]
    assert "ordered as: a nurse's triage note." in unknown
    assert shown.count("Rounds count from 0") == 1


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_opening_names_generators_and_nature_of_the_published_texts(place):
    data = run(**SCORED)
    first, other = data.generators[:2]
    uses = (GeneratorUse(first, "ngram", AuthorUsage(30)), GeneratorUse(other, "openai", AuthorUsage(30)))
    mine = tuple(replace(sample, generator=first) for sample in data.samples)
    data = replace(data, usage=uses, samples=mine, generators=(first, other))
    shown = both(data)[place]
    assert f"Written by {first} (an n-gram model of a public corpus), with the method" in shown
    assert f"repeat phrases of the public corpus that {first} learned from. Whose it is and under which" in shown
    assert shown.count(OPEN_SOURCE) == 1
    assert "word salad" in shown
    assert f"{other} (a language model) gave texts, too; none of these is in the corpus" in shown
    theirs = replace(data, samples=tuple(replace(sample, generator=other) for sample in mine))
    assert f"Written by {other} (a language model), with" in both(theirs)[place]
    assert "word salad" not in both(theirs)[place]
    assert "under which licence, these files do not say" not in both(theirs)[place]
    assert OPEN_SOURCE not in both(theirs)[place]
    for kind, unsaid in (("transformers", "Which language model wrote the"), ("function", "Where the")):
        unnamed = both(replace(theirs, usage=(GeneratorUse(other, kind, AuthorUsage(30)),)))[place]
        end = "and under which licence, these files do not say: ask the makers."
        assert re.search(rf"{unsaid} texts of {other}(?: come from)? {end}", unnamed)
        stated = GeneratorUse(other, kind, AuthorUsage(30), source="Advice of our desk, CC0-1.0.")
        named = both(replace(theirs, usage=(stated,)))[place]
        assert f"Source of the texts of {other}, as the makers state it: Advice of our desk, CC0-1.0." in named
        assert OPEN_SOURCE not in named
    third = "third"
    of_two = replace(data, generators=(first, other, third), samples=(*mine, replace(mine[0], generator=third)))
    options = [attributes["value"] for tag, attributes in Page(render_html(of_two)).elements if tag == "option"]
    assert {first, third} <= set(options)
    assert other not in options
    assert "f-generator" not in [attributes.get("id") for _, attributes in Page(render_html(data)).elements]


def test_report_states_a_score_beside_the_score_of_guessing():
    shown = render_html(run(labels=("a", "b", "c", "d", "e", "f")))
    assert "by guessing among the 6 labels, 17 would be right." in shown
    assert "guessing among" not in render_html(run(labels=()))


@pytest.mark.parametrize(("share", "is_told"), [(0.88, True), (0.7, True), (0.4, False)])
def test_skewed_labels_stand_beside_always_answering_the_most_frequent(share, is_told):
    skewed = run(labels=("injury", "loss", "nothing"), frequent_label=("nothing", share))
    said = f"About {100 * share:.0f} of 100 hospital records are labelled nothing: a program that always says so"
    assert all((said in shown) == is_told for shown in both(skewed))
    assert all("a program that always says so" not in shown for shown in both(run()))


def scored(low, high):
    return PrivateScore((low + high) / 2, low, high, 0.01, 0.02)


def panel_scores(ours, beside):
    """A panel of this corpus, and of the mixture without records: lower and upper end of each."""
    intervals = [Interval(sum(ends) / 2, *ends) for ends in (ours, beside)]
    return tuple(
        Accuracy(name, ends.value, 0.5, 0.5, 0.5, ours=name == "ours", reference=name != "ours", by_texts=ends)
        for name, ends in zip(("ours", "mixture"), intervals, strict=True)
    )


UNSTEERED = "No private record steered"
NEAR = Accuracy(ALONE.format("good"), 0.67, 0.5, 0.5, 0.5, reference=True, by_texts=Interval(0.67, 0.62, 0.72))
SIX = tuple("abcdef")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"score": scored(0.22, 0.30)}, "Hardly better than guessing: do not train on it; fit for testing programs."),
        ({"score": scored(0.26, 0.34)}, "Whether the records helped was not measured."),
        (
            {"score": scored(0.7, 0.8), "gain": (0.05, 0.02)},
            "The records' choice of texts and labels is better than all texts.",
        ),
        (
            {"score": scored(0.7, 0.8), "gain": (0.03, 0.02)},
            "The records' choice of texts and labels is within chance of all texts.",
        ),
        (
            {"score": scored(0.7, 0.8), "gain": (-0.05, 0.02)},
            "The records' choice of texts and labels is worse than all texts, so their choice is not published.",
        ),
        (
            {"accuracy": panel_scores((0.6, 0.7), (0.4, 0.5))},
            "As many mixture reach 45.0 % (40.0 to 50.0), 20.0 percentage points less than this corpus: this corpus is"
            f" better. {UNSTEERED} those texts.",
        ),
        (
            {"accuracy": panel_scores((0.6, 0.7), (0.5, 0.65)), "gain": (0.5, 0.01)},
            "As many mixture reach 57.5 % (50.0 to 65.0), 7.5 percentage points less than this corpus: within chance."
            f" {UNSTEERED} those texts.",
        ),
        (
            {"accuracy": panel_scores((0.3, 0.4), (0.5, 0.65))},
            "As many mixture reach 57.5 % (50.0 to 65.0), 22.5 percentage points more than this corpus: this corpus is"
            f" worse. {UNSTEERED} those texts.",
        ),
        (
            {"accuracy": (*panel_scores((0.6, 0.7), (0.4, 0.5)), NEAR)},
            "As many texts of good alone, ordered anew, reach 67.0 % (62.0 to 72.0), 2.0 percentage points more than"
            " this corpus: within chance. As many mixture reach 45.0 % (40.0 to 50.0), 20.0 percentage points less than"
            f" this corpus: this corpus is better. {UNSTEERED} any of those other texts.",
        ),
        ({"accuracy": panel_scores((0.2, 0.3), (0.1, 0.2)), "score": scored(0.7, 0.8)}, HARDLY),
        ({"labels": ("a", "b"), "score": scored(0.54, 0.9)}, HARDLY),
        ({}, UNMEASURED),
        ({"labels": ()}, UNMEASURED),
        (
            {"labels": (), "score": replace(scored(0.5, 0.54), zero_shot=ZeroShot(200, 0.47, 0.01))},
            "By similarity to the hospitals' records, this corpus is better than texts that no record has steered.",
        ),
        (
            {"labels": (), "score": replace(scored(0.5, 0.54), zero_shot=ZeroShot(200, 0.51, 0.01))},
            "By similarity to the hospitals' records, this corpus is within chance of texts that no record has"
            " steered.",
        ),
        (
            {"labels": (), "score": replace(scored(0.5, 0.54), zero_shot=ZeroShot(200, 0.6, 0.01))},
            "By similarity to the hospitals' records, this corpus is worse than texts that no record has steered.",
        ),
    ],
)
def test_same_verdict_stands_beside_the_score_on_every_page(changes, expected):
    data = run(**({"labels": SIX, "accuracy": ()} | changes))
    assert verdict(data) == expected
    opening = next(answer for answer in answers(data) if answer.anchor == "good").sentences
    assert list(opening[:4]).count(expected) == 1
    assert expected in " ".join(printed(data, width=200).split())
    for shown in both(data):
        assert expected in shown
        assert ("Not for training a model that you will use." in shown) == (expected == HARDLY)


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({"accuracy": panel_scores((0.6, 0.7), (0.4, 0.5))}, 1),
        ({"accuracy": panel_scores((0.6, 0.7), (0.5, 0.65)), "gain": (0.5, 0.01)}, 0),
        ({"accuracy": panel_scores((0.3, 0.4), (0.5, 0.65))}, -1),
        ({"accuracy": (*panel_scores((0.6, 0.7), (0.4, 0.5)), NEAR)}, 0),  # the least favourable one counts
        ({"score": scored(0.7, 0.8), "gain": (0.05, 0.02)}, 1),
        ({"score": scored(0.7, 0.8), "gain": (0.03, 0.02)}, 0),
        ({"score": scored(0.7, 0.8), "gain": (-0.05, 0.02)}, -1),
        ({"score": scored(0.7, 0.8)}, None),
        ({}, None),
    ],
)
def test_sign_of_the_records_help_matches_its_words(changes, sign):
    data = run(**({"labels": SIX, "accuracy": ()} | changes))
    assert records_help(data).sign == sign
    assert sign is None or records_help(data).words == verdict(data)


ZERO = Accuracy(ZERO_SHOT, 0.44, 0.5, 0.5, 0.5, reference=True, by_texts=Interval(0.44, 0.4, 0.48))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"accuracy": (*panel_scores((0.6, 0.7), (0.4, 0.5))[:1], ZERO), "score": scored(0.7, 0.8)},
            (
                f"{FIT_FOR_EXERCISES}: the panel's classifiers that learn from it label, as a mean, 30 to 40 of 100"
                f" texts like those of the test file wrongly; effect of the records on quality: better;"
                f" {NOT_COMPARED}.",
                "65.0 % (60.0 to 70.0) right on 200 notes: so many of its texts get their true label from small models"
                " (the panel) that learned from this corpus alone.",
                "As many zero-shot texts of all its generators reach 44.0 % (40.0 to 48.0), 21.0 percentage points less"
                f" than this corpus: this corpus is better. {UNSTEERED} those texts.",
            ),
        ),
        (
            {"score": scored(0.7, 0.8)},
            (
                f"{FIT_FOR_EXERCISES}: a classifier that learns from it labels 20 to 30 of 100 records like those of"
                f" the hospitals wrongly; {NOT_COMPARED}.",
                "75 % of cases (70 to 80) right on the hospitals' own records, measured privately: so many of them get"
                " their true label from a classifier that learned from this corpus alone.",
                "From as many texts that no private record has steered: not measured.",
            ),
        ),
        (
            {"labels": (), "score": PrivateScore(0.52, 0.5, 0.54, 0.01, 0.01, "similarity", ZeroShot(200, 0.47, 0.01))},
            (
                "By similarity to the hospitals' records, this corpus is better than texts that no record has steered.",
                "0.52 (0.50 to 0.54) is the mean similarity of the hospitals' own records to the nearest of 200 of"
                " these texts.",
                "0.47 is that to the nearest of 200 texts that no record has steered.",
            ),
        ),
        ({}, (UNMEASURED, "On a test file of real texts: not measured.")),
    ],
)
def test_answer_how_good_it_is_begins_with_the_conclusion(changes, expected):
    data = run(**({"labels": SIX, "accuracy": ()} | changes))
    (good,) = [answer for answer in answers(data) if answer.anchor == "good"]
    assert good.sentences[: len(expected)] == expected
    assert (MAKERS_FIGURES in good.sentences) == (UNMEASURED not in good.sentences)


FAR = tuple(Measure(name, name, value, "0 to 1", "high") for name, value in WEAK.items())
NEAR_SET = tuple(Measure(name, name, 0.95, "0 to 1", "high") for name in WEAK)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"accuracy": panel_scores((0.6, 0.7), (0.4, 0.5)), "measures": NEAR_SET}, "on quality: better; much like"),
        (
            {"accuracy": panel_scores((0.6, 0.7), (0.5, 0.65)), "measures": FAR},
            "on quality: within chance; not a stand-in for the",
        ),
        (
            {"accuracy": panel_scores((0.3, 0.4), (0.5, 0.65))},
            f"effect of the records on quality: worse; {NOT_COMPARED}.",
        ),
        (
            {"accuracy": panel_scores((0.6, 0.7), (0.5, 0.65))[:1], "measures": FAR[:2]},
            f"test file wrongly; {NOT_COMPARED}.",
        ),
        ({"score": scored(0.26, 0.34), "measures": FAR}, "labels 66 to 74 of 100 records like those of the"),
        ({"score": scored(0.22, 0.30), "measures": FAR}, HARDLY),
        ({"measures": FAR}, UNMEASURED),
    ],
)
def test_conclusion_depends_on_the_measured_figures(changes, says):
    data = run(**({"labels": SIX, "accuracy": ()} | changes))
    assert says in conclude(data)
    assert says in both(data)[0]


def test_no_stand_in_is_mentioned_when_the_embedding_misses_the_labels():
    (own, _) = panel_scores((0.6, 0.7), (0.5, 0.65))
    blind = replace(own, by_model={"words": 0.9, "head": 0.2, "mlp": 0.2})
    assert "stand-in" not in conclude(run(labels=SIX, accuracy=(blind,), measures=FAR))


@pytest.mark.parametrize(
    ("writers", "opening", "limits"),
    [
        (("good (a language model)",), "60 synthetic texts", "The texts are invented. They may be wrong"),
        (
            (f"good ({WRITTEN_BEFORE})",),
            "60 texts",
            "The texts are copies of texts that were written before: who wrote them, and of whom they tell, these files"
            " do not say. They may be wrong",
        ),
        (
            ("good (a language model)", f"mixed ({WRITTEN_BEFORE})"),
            "60 texts",
            "The texts of mixed are copies of texts that were written before: who wrote them, and of whom they tell,"
            " these files do not say. The other texts are invented. They may be wrong",
        ),
        (
            (f"good (letters, {OF_ANOTHER_PACKAGE})",),
            "60 synthetic texts",
            "Whether the texts of good are invented, these files do not say.",
        ),
        (
            (f"good (the function good {OF_THIS_PROCESS})",),
            "60 synthetic texts",
            "Whether the texts of good are invented",
        ),
    ],
)
def test_report_does_not_call_texts_copied_from_a_file_invented(writers, opening, limits):
    names = tuple(writer.partition(" (")[0] for writer in writers)
    uses = tuple(GeneratorUse(name, "x", AuthorUsage(30), writer) for name, writer in zip(names, writers, strict=True))
    data = run(generators=names, usage=uses, weights=())
    for shown in both(data):
        assert f"{opening} with 2 labels" in shown
        assert limits in shown
        assert ("opied from" in shown) == any(use.is_copied for use in uses)
    head = render_card(data).partition("---\n\n")[0]
    assert ("tags: [synthetic" in head) == (not all(use.is_copied for use in uses))


def test_trial_of_the_topic_classifier_is_shown_only_in_the_details():
    trial = ClassifierTrial(66, 64, 609, 0).sentence
    data = run(remarks=(f"7 texts are set aside. {COUNTS} 3 to good. {trial}", "a remark"))
    (good,) = [answer for answer in answers(data) if answer.anchor == "good"]
    assert "7 texts are set aside." in good.sentences
    assert f"{COUNTS} 3 to good. {trial}" in good.details
    assert "a remark." in good.sentences


@pytest.mark.parametrize("simulated", [True, False])
def test_report_of_a_simulation_says_that_no_hospital_signed_or_approved(simulated):
    data = run(purpose="To teach.", simulated=simulated, publisher=("", "") if simulated else ("clinics", "ab12"))
    for shown in both(data):
        for claim in ("hospitals have signed the plan", "as the hospitals approved it", "ledger, which it keeps"):
            assert not (simulated and claim in shown), claim
        assert ("No hospital has signed anything" in shown) == simulated
        assert ("as the plan states it: To teach." in shown) == simulated
    (what, *_) = answers(data)
    assert (what.sentences[1] == SIMULATED) == simulated


@pytest.mark.parametrize(("share", "is_told"), [(0.42, True), (0.2, True), (0.19, False)])
def test_doubtful_labels_are_stated_in_the_answer_how_good_it_is(share, is_told):
    wrong_labels = Measure("doubtful labels", "s", share, "0 to 100 %", "low", percent=True)
    data = run(measures=(wrong_labels,), accuracy=panel_scores((0.8, 0.9), (0.1, 0.2)))
    (good,) = [answer for answer in answers(data) if answer.anchor == "good"]
    assert ("labels are doubtful" in " ".join(good.sentences[:4])) is is_told
    for shown in (render_card(data), render_html(data)):
        assert shown.count(f"{100 * share:.0f} % of the labels are doubtful") == is_told


@pytest.mark.parametrize(("head", "mlp", "warned"), [(20, 22, True), (20, 60, False), (60, 60, False)])
def test_distances_by_an_embedding_that_misses_labels_are_qualified(head, mlp, warned):
    own = Accuracy("ours", 0.5, 0.5, 0.5, 0.5, True, by_texts=Interval(0.5, 0.45, 0.55))
    own = replace(own, by_model={"words": 0.7, "head": head / 100, "mlp": mlp / 100})
    near = Measure("recall", "r", -0.0001, "0 to 1", "high")
    data = run(labels=SIX, accuracy=(own,), measures=(near,))
    report, card = both(data)
    assert report.count(FAR_FROM_TASK) == warned
    assert card.count(FAR_FROM_TASK) == warned
    assert near.shown == "0.000"


def test_private_similarity_is_stated_on_card_report_and_screen():
    score = PrivateScore(0.52, 0.5, 0.54, 0.01, 0.01, "similarity", ZeroShot(200, 0.47, 0.01))
    data = run(labels=(), score=score)
    assert score.sentence(is_private=True) in both(data)[0]
    assert score.sentence(is_private=True) in render_card(data)
    assert "0.52  similarity of the hospitals' own records" in printed(data, width=200)


VOTES = {"records": 100.0, "votes": [60.0, 38.0, 2.0], "expected": [33.0, 33.0, 34.0], "error": [0.2, 0.2, 0.1]}
RECORDS = {
    "support": [(0, VOTES)],
    "set aside": [(0, [["a text", "", "off", 0, "zero_shot", "generator"]] * 25)],
    "left out": [(0, {"off": "too few records are near its texts"}), (1, {"mixed": "a classifier labels 9 fewer"})],
}


@pytest.mark.parametrize("place", [0, 1])
def test_one_table_states_each_generators_counts_and_fate_with_the_reason(place):
    data = run(evil=True)
    names = dict(zip(("good", "mixed", "off"), data.generators, strict=True))
    mine = [sample for sample in data.samples if sample.generator == names["good"]]
    renamed = tuple(replace(sample, generator="good") for sample in mine)
    written = {"good": 30, "mixed": 25, "off": 25}
    writers = tuple(list_writers(written, renamed, (1.0, 0.0, 0.0), RECORDS))
    assert [writer.in_no_file for writer in writers] == [10, 25, 0]
    assert [writer.cells[1:] for writer in writers] == [
        ("30", "100 %", "20", "0", "10", "–"),
        ("25", "0 %", "0", "0", "25", "after round 2: a classifier labels 9 fewer"),
        ("25", "0 %", "0", "25", "0", "after round 1: too few records are near its texts"),
    ]
    shown = both(replace(data, writers=tuple(replace(writer, name=names[writer.name]) for writer in writers)))[place]
    assert shown.count("Where the texts come from") == 1
    assert "after round 2: a classifier labels 9 fewer" in shown
    assert "Where the texts come from" not in both(data)[place]


def test_generator_table_has_only_counts_for_a_method_without_sums():
    (writer,) = list_writers({"good": 30}, run(3, generators=("good",)).samples, (), {})
    assert writer.cells == ("good", "30", "–", "3", "0", "27", "–")


def test_card_of_a_task_without_labels_does_not_mention_labels():
    card = render_card(run(labels=()))
    assert "| label | empty: the task has no labels |" in card
    assert 'groupby("label")' not in card


def test_card_and_report_state_the_same_median_length():
    data = run(2)
    texts = "one two three", "one two three four"
    written = [replace(sample, text=text) for sample, text in zip(data.samples, texts, strict=True)]
    report, card = both(replace(data, samples=tuple(written)))
    assert "Length in words: median 4," in card
    assert "words (median 4)" in report


@pytest.mark.heavy
@pytest.mark.parametrize("place", [0, 1])
def test_opening_lists_the_decisions_that_the_records_steered(place):
    told = both(run(steered=("which texts were set aside", "which texts and labels are published")))[place]
    assert "steered which texts were set aside and which texts and labels are published, by noisy sums" in told
    assert "steered the method's choices, by noisy sums" in both(run())[place]


@pytest.mark.slow
def test_weights_chart_does_not_claim_that_records_moved_equal_shares():
    still, moved = ((0.5, 0.5), (0.5, 0.5)), ((0.5, 0.5), (0.7, 0.3))
    assert "records moved it" not in render_html(run(generators=("good", "off"), weights=still))
    assert "It stayed as it began: no private sum moved it." in render_html(
        run(generators=("good", "off"), weights=still)
    )
    assert "records moved it" in render_html(run(generators=("good", "off"), weights=moved))
