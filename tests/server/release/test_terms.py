"""Card, report and verify state licence, source and contacts of a corpus with the same functions."""

import json
from dataclasses import replace

import pytest

from tests.server.report.test_report import both, run
from undersong_protocol.agreement.words import NGRAM_WRITER, NO_GUARANTEE
from undersong_server.generators.author import AuthorUsage
from undersong_server.generators.kinds.function import FunctionSettings
from undersong_server.generators.kinds.ngram import NgramSettings
from undersong_server.generators.kinds.openai import OpenAISettings
from undersong_server.generators.kinds.replay import ReplaySettings
from undersong_server.generators.kinds.transformers import TransformersSettings
from undersong_server.release.verify import ASK_HOSPITAL, verify
from undersong_server.report.card_facts import read_card_facts
from undersong_server.report.check_words import CHECK_WORDS
from undersong_server.report.data import GeneratorUse
from undersong_server.report.html import render_card
from undersong_server.report.terms import (
    LICENCE_UNCONFIRMED,
    NGRAM,
    OPEN_INSIDE,
    SOURCE_LICENCE_UNKNOWN,
    UNTOLD,
    USE_LIMITS,
    CorpusTerms,
    TextSource,
    kind_of,
    mark_example,
    terms_of_plan,
)
from undersong_server.runs.task import PublicationSection

REAL, EXAMPLE = "data@clinics.org", "data@clinics.example"
NAMED, UNNAMED = (TextSource("gpt", "openai"),), (TextSource("handbook", NGRAM),)


@pytest.mark.parametrize(
    ("licence", "contact", "sources", "lead"),
    [
        ("CC-BY-4.0", REAL, NAMED, "Yes, by the licence, CC-BY-4.0: it lets you publish"),
        ("CC-BY-4.0", REAL, UNNAMED, "Not until the licence of their source is known to you: publish no text"),
        ("CC-BY-4.0", EXAMPLE, UNNAMED, "No, as it stands: publish no text"),
        ("", REAL, NAMED, "Not until its makers state a licence: its makers have stated no licence: ask data@clinics"),
        ("", EXAMPLE, NAMED, "No, as it stands: its makers have stated no licence, and nobody here can be asked."),
        (
            "CC-BY-4.0",
            EXAMPLE,
            NAMED,
            "Yes, to try things out; no, for what you rely on, publish or sell: nobody here can confirm that the",
        ),
        ("House terms", REAL, NAMED, "Not until you have read its licence, House terms: "),
    ],
)
def test_permission_answer_begins_with_yes_no_or_not_until(licence, contact, sources, lead):
    assert CorpusTerms(licence, (contact,), sources).allow().startswith(lead)


@pytest.mark.parametrize(
    ("licence", "sources", "says"),
    [
        ("CC0-1.0", NAMED, "(hosted), are free, too."),
        ("CC-BY-4.0", NAMED, "inside your organisation needs no credit, which is due for what is shared. The licence"),
        ("CC-BY-NC-4.0", NAMED, "and is not for money either. The licence does not name a model that others only"),
        ("CC-BY-4.0", UNNAMED, OPEN_INSIDE),
        ("House terms", NAMED, "use it inside your organisation or host a model, it says itself."),
        ("", NAMED, "Nor have they stated if you may use it inside your organisation, or host a model"),
    ],
)
def test_permission_answer_covers_internal_use_and_hosted_models(licence, sources, says):
    assert says in CorpusTerms(licence, (REAL,), sources).allow()


@pytest.mark.parametrize(
    "settings",
    [
        NgramSettings.model_construct(name="a", kind="ngram"),
        ReplaySettings.model_construct(name="a", kind="replay"),
        TransformersSettings.model_construct(name="a", kind="transformers"),
        FunctionSettings.model_construct(name="a", kind="function", function="f"),
        OpenAISettings.model_construct(name="a", kind="openai", model="m", base_url="https://api.example.org/v1"),
    ],
)
def test_generator_kind_is_read_from_its_description_in_the_plan(settings):
    assert kind_of(settings.words) == settings.kind


@pytest.mark.parametrize("contact", [REAL, EXAMPLE])
def test_verify_repeats_the_warnings_of_card_and_report(tmp_path, published, signer, contact):
    publication = PublicationSection(licence="CC-BY-4.0", contact=contact, invented_records=True)
    usage = (GeneratorUse("good", NGRAM, AuthorUsage(30)),)
    data = run(publication=publication, usage=usage, generators=("good",), test_hash="", test_set="")
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign(published[0])))
    verdict = verify(tmp_path, fingerprint=signer.authority.fingerprint)
    writer = f"good ({NGRAM_WRITER})"
    task = {**verdict.manifest.task, "publication": publication.stated, "generators": [writer]}
    card = read_card_facts(render_card(data))
    stated = replace(verdict, manifest=replace(verdict.manifest, task=task), card=card, lacks_corpus=False)
    assert stated.terms == data.terms
    assert f"May I use it? {UNTOLD}" in replace(stated, lacks_corpus=True).warnings
    assert not any(data.terms.allow() in line for line in replace(stated, lacks_corpus=True).lines())
    assert data.terms.describe_demonstration() in stated.lines()
    sentences = (data.terms.describe_demonstration(), data.terms.allow(), data.terms.name_sources(), USE_LIMITS)
    for sentence in sentences:
        assert all(sentence in shown for shown in both(data))
        assert any(warning.endswith(sentence) for warning in stated.to_json()["warnings"])
    assert (mark_example(contact) != contact) is any("an example, which leads" in line for line in stated.lines())
    assert NO_GUARANTEE not in verdict.warnings
    assert NO_GUARANTEE in replace(verdict, insecure=True).warnings
    assert replace(verdict, faults=("changed",)).warnings == ()


def test_verify_reads_a_stated_source_from_the_signed_card(tmp_path, published, signer):
    statement = "Advice of *our* desk & more, CC0-1.0."
    usage = (GeneratorUse("good_one", NGRAM, AuthorUsage(30), source=statement),)
    data = run(usage=usage, generators=("good_one",))
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign(published[0])))
    verdict = verify(tmp_path)
    writer = f"good_one ({NGRAM_WRITER})"
    manifest = replace(verdict.manifest, task={**verdict.manifest.task, "generators": [writer]})
    for card, is_stated in ((render_card(data), True), (render_card(run(usage=())), False)):
        terms = replace(verdict, manifest=manifest, card=read_card_facts(card)).terms
        assert (terms.quote_sources() == data.terms.quote_sources()) is is_stated
        assert bool(terms.name_sources()) is not is_stated


def test_terms_name_only_generators_that_wrote_rows_of_the_corpus():
    task = {"generators": ["a (texts that were written before)", "b (texts that were written before)"]}
    assert terms_of_plan(task, ("b",)).sources == (TextSource("b", "replay"),)
    assert len(terms_of_plan(task, ()).sources) == 2
    assert terms_of_plan({"generators": 4}, ()) == CorpusTerms()


@pytest.mark.parametrize(
    ("kind", "licence", "says"),
    [
        ("openai", "CC-BY-4.0", 'license: "cc-by-4.0"'),
        ("openai", "House terms", 'license: other\nlicense_name: "House terms"'),
        (NGRAM, "CC-BY-4.0", f'license: other\nlicense_name: "CC-BY-4.0{SOURCE_LICENCE_UNKNOWN}"'),
        (NGRAM, "", ""),
    ],
)
def test_card_metadata_state_no_licence_when_a_source_is_unknown(kind, licence, says):
    assert licence_metadata(kind, PublicationSection(licence=licence)) == says.splitlines()


def test_card_metadata_of_a_licence_that_nobody_can_confirm_say_so():
    stated = licence_metadata("openai", PublicationSection(licence="CC-BY-4.0", contact=EXAMPLE))
    assert stated == ["license: other", f'license_name: "CC-BY-4.0{LICENCE_UNCONFIRMED}"']
    assert licence_metadata("openai", PublicationSection(contact=EXAMPLE)) == []


def licence_metadata(kind, publication):
    """The lines of a card's metadata that begin with "license"."""
    usage = (GeneratorUse("good", kind, AuthorUsage(30)),)
    card = render_card(run(publication=publication, usage=usage, generators=("good",)))
    metadata = card.partition("configs:")[0].splitlines()
    return [line for line in metadata if line.startswith("license")]


@pytest.mark.parametrize("contact", [REAL, EXAMPLE])
def test_verify_does_not_ask_for_a_fingerprint_that_nobody_can_confirm(tmp_path, published, signer, contact):
    (tmp_path / "manifest.json").write_text(json.dumps(signer.sign(published[0])))
    fingerprint = signer.authority.fingerprint
    for stated in (None, fingerprint):
        verdict = verify(tmp_path, fingerprint=stated)
        task = {**verdict.manifest.task, "contact": contact}
        told = replace(verdict, manifest=replace(verdict.manifest, task=task))
        lines = [line.strip() for line in told.lines()]
        assert (ASK_HOSPITAL in lines) is (contact == REAL and not stated)
        assert (CHECK_WORDS["nobody confirms"] in lines) is (contact == EXAMPLE and not stated)
        assert told.conclusion()[2].endswith(", if genuine.") is (contact == EXAMPLE or not stated)
        assert (
            not replace(told, is_own=True, confirmed=True, known=tuple(told.spent)).conclusion()[2].endswith("genuine.")
        )
        assert (CHECK_WORDS["unconfirmed"] in told.conclusion()[1]) is (contact == EXAMPLE and bool(stated))
