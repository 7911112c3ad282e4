"""Answers as models give them, and what each of them is."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from importlib import resources
from typing import Any

import pytest

from tests.doubles.refusals import REFUSALS
from undersong_common.errors import GenerationError
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.languages import is_other_language, is_refusal
from undersong_server.generators.reading import CUT, ECHO, SEVERAL, ReadText, read
from undersong_server.prompts.rendering import Prompts, TaskWords

TEXT = "My card was declined at the till, what can I do?"
PROMPT = Prompts(TaskWords(description="a customer's question", labels=("card",))).render(
    "contrast", label="card", good=("Where is my card?\nI need it.",), bad=("Buy now.",)
)
REQUEST = GenerationRequest(
    "contrast", "card", PROMPT.user, 1, good=("Where is my card?\nI need it.",), bad=("Buy now.",), system=PROMPT.system
)
CONTINUED = GenerationRequest("zero_shot", "card", "Text:", 1, style="completion", stop=("\n",))


OWNED = GenerationRequest(
    "zero_shot", "card", "Put it in <text> and </text>.", 1, told=("a customer's question to an online bank", "brief")
)


@pytest.mark.parametrize(
    "title", ["Customer: ", "Customer Question:\n", "customer’s question: ", "**Customer:** ", "Customer：\n"]
)
@pytest.mark.parametrize("tags", ["{}", "<text>{}</text>"])
def test_author_name_at_the_beginning_is_removed_from_a_text(title: str, tags: str) -> None:
    assert read(Completion(tags.format(title + TEXT)), OWNED) == ReadText(TEXT)


@pytest.mark.parametrize(
    "text",
    [
        "User: 12345 cannot log in.",
        "Note: allergic to penicillin.",
        "A question: where is my card?",
        "My question: where is my card?",
        "Question: where is my card?\nAnswer: in the post.",
        "Bank: what is its number?",
        "Customer number: 12345, and my card is gone.",
        "Customer: my card is gone.\nAgent: since when?",
        "My card is gone.\nCustomer: Ann",
        "Customer:service is slow",
    ],
)
def test_title_that_does_not_occur_in_the_task_is_kept(text: str) -> None:
    assert read(Completion(f"<text>{text}</text>"), OWNED) == ReadText(text)


@pytest.mark.parametrize(
    ("description", "title"),
    [
        ("a customer's question to an online bank", "Question: "),
        ("a customer's question to an online bank", "**User question:** "),
        ("a customer's question to an online bank", "Question:\n"),
        ("a movie review", "Movie review: "),
        ("a nurse's triage note", "Triage note: "),
        ("eine Kundenfrage an eine Bank", "Kundenfrage: "),
        ("eine Frage einer Kundin an eine Bank", "Frage: "),
        ("une question d'un client à une banque", "Question du client : "),
        ("銀行へのお客様の質問", "質問："),
    ],
)
def test_title_that_only_names_the_kind_of_text_is_removed(description: str, title: str) -> None:
    request = dataclasses.replace(OWNED, told=(description, "a note"))
    assert read(Completion(f"<text>{title}{TEXT}</text>"), request) == ReadText(TEXT)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ("a nurse's triage note", "Note: allergic to penicillin."),
        ("a nurse's triage note", "Plan: review in a week."),
        ("a customer's message", "Question: where is my card?"),
        ("eine Frage einer Kundin an eine Bank", "Eine Frage: wo ist meine Karte?"),
        ("eine Kundenfrage an eine Bank", "Rückfrage: wo ist meine Karte?"),
        ("une question d'un client à une banque", "Ma question : où est ma carte ?"),
        ("une note d'infirmière", "Note : allergique à la pénicilline."),
        ("お客様の声", "質問：カードはどこですか。"),
    ],
)
def test_title_that_does_not_name_the_kind_of_text_is_kept(description: str, text: str) -> None:
    request = dataclasses.replace(OWNED, told=(description, "a question"))
    assert read(Completion(f"<text>{text}</text>"), request) == ReadText(text)


def fault(text: str, finish: str = "", **options: str) -> str:
    return read(Completion(text, finish=finish), REQUEST, **options).fault  # type: ignore[arg-type]


def test_continuation_ends_with_the_sentence_that_reaches_its_length():
    bounded = GenerationRequest("worded", "card", "Text:", 1, style="completion", words=4, bounded=True)
    said = Completion("My card is gone. I saw it on Monday. And then I went to", finish="length")
    assert read(said, bounded) == ReadText("My card is gone.")
    assert read(said, CONTINUED).text == "My card is gone. I saw it on Monday."


def test_vocabulary_request_accepts_any_text_except_a_refusal():
    request = GenerationRequest("vocabulary", "card", "Words:", 1)
    assert read(Completion("I lost my card"), request) == ReadText("I lost my card")
    assert read(Completion("I cannot help with that request."), request).fault == "refused"


@pytest.mark.parametrize(
    ("refusal", "complaint"),
    [
        ("Em sap greu, no puc generar notes mèdiques fictícies.", "No puc pagar amb aquesta targeta, podeu ajudar-me?"),
        ("Mér þykir leitt en ég get ekki skrifað þessa skýrslu.", "Ég get ekki andað og hausinn er verri."),
        ("Kahjuks ei saa ma seda teksti kirjutada.", "Ma ei saa oma kaardiga maksta, kas saate aidata?"),
        ("Nažalost, ne mogu napisati taj tekst.", "Ne mogu platiti karticom, možete li mi pomoći s tim?"),
    ],
    ids=["Catalan", "Icelandic", "Estonian", "Croatian"],
)
def test_refusals_and_complaints_differ_in_less_common_languages(refusal: str, complaint: str) -> None:
    assert is_refusal(refusal)
    assert not is_refusal(complaint)


def test_at_least_95_of_100_unseen_refusals_are_recognised() -> None:
    phrasings = [(language, said) for language, each in REFUSALS.items() for said in each]
    assert len(REFUSALS) >= 8
    assert len(phrasings) >= 60
    told = [said for _, said in phrasings if fault(said) == "refused"]
    assert len(told) >= 0.95 * len(phrasings)
    for language, each in REFUSALS.items():
        assert any(is_refusal(said) for said in each), language


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "I can't complete a transfer to my mother, can you help me with this?",
        "I'm sorry, but I can't find my card anywhere.",
        "I cannot help but laugh at this film.",
        "The ATM won't give me my card back. Please help.",
        "Why was I not able to make a payment?",
        "Patient is unable to provide details about her history.",
        "I don't want to spoil the ending, so I won't write about it at length; go and see the film.",
        "Ich kann meine Karte nicht finden, und der Automat geht auch nicht.",
        "No puedo entrar en mi cuenta desde ayer.",
        "Je ne peux pas retirer d'argent au distributeur.",
        "Sorry for poor history, pt unable to answer further. 38F, L calf cold since 21:00.",
        "Unable to complete full neuro exam, patient agitated and pulling at lines.",
        "Sorry, unable to answer further, out of breath, please send somebody.",
        "Sorry to be a pain, but I can't complete my shift, I feel sick and dizzy.",
        "We cannot offer transport; patient's son drove him in his own car.",
        "Patient kann Fragen nicht beantworten, schläfrig, GCS 12.",
        "Unable to provide urine sample, pt dehydrated. IV fluids started, repeat BM in one hour.",
        "I'm not able to answer your security questions because I have lost my phone, can somebody call me?",
        "I will not be able to complete this assessment until the interpreter is here.",
        "Sorry, I can't provide the document you asked for, my passport is at the embassy. Is a licence enough?",
        "Wife unable to give further information about the fall. We won't be able to support discharge tonight.",
        "Unfortunately I cannot create a new card in the app, it keeps giving me an error message.",
        "Can't write with his right hand since 07:00, speech slurred, unable to produce a full sentence.",
        "I am unable to share my screen with your support and can't process the payment either. What now?",
        "Patientin kann die Angaben zur Medikation nicht machen, Tochter bringt den Plan. Schmerz 6 von 10.",
        "Leider kann ich den Überweisungsträger nicht ausfüllen und die TAN nicht erzeugen. Was soll ich tun?",
        "Kann seit heute früh nicht mehr schreiben, rechte Hand schwach, Mundwinkel hängt.",
        "Ehefrau möchte bei der Pflege nicht helfen, Pat. kann Fragen nur mit Nicken beantworten.",
        "Patient ne peut pas répondre aux questions, confus, GCS 13. La fille fournira l'ordonnance.",
        "Je ne peux pas générer de code de sécurité dans l'application, aidez-moi s'il vous plaît.",
        "Impossible de faire un ECG complet, patient agité. Refuse la demande d'hospitalisation.",
        "Ne peut plus écrire de la main gauche depuis ce matin, parle difficilement.",
        "No puedo completar la solicitud de préstamo en la aplicación, me sale un error. ¿Qué hago?",
        "Paciente incapaz de responder a preguntas, somnoliento. La hija refiere que no puede ayudar en casa.",
        "Pacjent nie jest w stanie odpowiedzieć na pytania, splątany. Córka poda listę leków.",
        "Nie mogę wykonać przelewu ani wygenerować kodu w aplikacji, proszę o pomoc.",
        "We are unable to offer a bed tonight; patient and family told, will continue in the corridor with monitoring.",
        "Ich kann Ihre Anfrage nach dem Einkommensnachweis nicht erfüllen, weil mir die Abrechnung fehlt.",
        "Could not complete spirometry, cough too strong; patient unable to follow instructions, repeat tomorrow.",
        "Sorry, can't provide a stool sample yet, will try again after lunch.",
        "We won't be able to process discharge until pharmacy answers, patient informed of this.",
        "I can't proceed with this payment because the code never comes. Can you help me with it?",
        "I was asked to answer a question about my first pet and I can't, so I am locked out.",
        "Unable to meet own needs at home. Cannot carry out personal care, daughter offers support.",
        "Patient möchte diese Untersuchung nicht, kann die Einwilligung nicht unterschreiben.",
        "Ich kann Ihnen das Formular nicht schicken, die App zeigt nur eine leere Seite.",
        "Kann wegen Luftnot keine Angaben machen, Antworten nur durch Nicken, bitte Angehörige fragen.",
        "Je ne peux pas vous fournir le justificatif demandé, l'application refuse la photo.",
        "Refuse de répondre, ne veut pas que sa fille l'aide. Impossible de poser une voie veineuse.",
        "No puedo escribir con la mano derecha desde ayer y se me cae todo.",
        "No me deja crear una contraseña nueva, ¿me pueden ayudar?",
        "Non riesco a rispondere alle domande di sicurezza, ho cambiato numero.",
        "Paziente non in grado di rispondere, la moglie non può fornire la terapia.",
        "Chora nie może pisać prawą ręką, mowa niewyraźna od rana.",
        "I'm not sure why my top up request was denied",
        "I will decline a premium card; what does the content of the standard package hold back?",
    ],
)
def test_text_about_a_person_who_cannot_do_something_is_no_refusal(text: str) -> None:
    assert fault(text) == ""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("<text></text>", "empty"),
        ("<!DOCTYPE html><html><body>Welcome to the hotel's network</body></html>", "page or data"),
        ('{"error": {"message": "overloaded", "code": 529}}', "page or data"),
        ('[{"text": "a"}, {"text": "b"}]', "page or data"),
        (
            "Here are three questions:\n\n1. Where is my card?\n2. Why was it declined?\n3. When will it come?",
            "several texts",
        ),
        ("1. Where is my card?\n2. Why was it declined?", "several texts"),
        ("<text>Where is my card?</text>\n<text>Why was it declined?</text>", "several texts"),
        ("Question 1: Where is it?\n\nQuestion 2: Why?", "several texts"),
        ("**Version A:** My card is gone.\n**Version B:** The card has gone missing.", "several texts"),
        ("My card is gone.\n\n---\n\nThe card has gone missing.", "several texts"),
        ("The user wants a new question about cards. It should be short.", "analysis"),
        ("Okay, so I need to write a new text that goes further.", "analysis"),
        ("We need to produce one question of the category card.", "analysis"),
        ("Analysis:\nThe first is longer.", "analysis"),
        ("Short and clear, unlike the bad examples, which advertise.", "analysis"),
        ("<text>I'm sorry, but I don't have the specific example text to use. Please provide it.</text>", "analysis"),
        ("I'm sorry, but I don't have enough information to provide a customer's question.", "analysis"),
        ("Sorry, I don't understand the context or the question you're trying to ask.", "analysis"),
        ("I don't see any customer question you would like to write about a card. Could you say more?", "analysis"),
        ("Sure, I can help you with that! Which card is it about?", "not told from what surrounds it"),
        ("Of course! We'd be happy to help. What is your question?", "not told from what surrounds it"),
        ("Dear [Name], my card was declined.", "placeholder"),
        ("I paid [insert amount] to {{merchant_name}} yesterday.", "placeholder"),
        ("They are close to what real ones look like. My card is gone.", "echo of the prompt"),
        ("They are close to what real people say. My card is gone.", ""),
        ("<text>Card</text>", "echo of the prompt"),
        ("Card: where is it?", "not told from what surrounds it"),
        (f"{PROMPT.user.splitlines()[-1]}", "empty"),
        (f"So: {PROMPT.system} And my card is gone.", "echo of the prompt"),
        (PROMPT.user.partition("where it fits: ")[2].partition("\n")[0].capitalize(), "echo of the prompt"),
    ],
)
def test_answer_that_is_no_text_is_rejected_with_its_kind_of_fault(raw: str, kind: str) -> None:
    assert fault(raw) == kind


@pytest.mark.parametrize(
    "raw",
    [
        TEXT,
        f"<text>{TEXT}</text>",
        f"&lt;text&gt;{TEXT}&lt;/text&gt;",
        f"<text>\n{TEXT}\n</text>\n\nI hope this helps! Let me know if you need another one.",
        f"Sure, here you go: <text>{TEXT}</text>",
        f"I write it between <text> and </text>, as you asked: <text>{TEXT}</text>",
        f"Message: {TEXT}",
        f"Customer question: {TEXT}",
        f"Here is a new example:\n\n{TEXT}",
        f'{{"text": "{TEXT}"}}',
        f"{TEXT}\n\n(Word count: 10)",
    ],
)
def test_wrapping_around_a_text_is_removed_without_a_fault(raw: str) -> None:
    assert read(Completion(raw), REQUEST).text == TEXT
    assert fault(raw) == ""


@pytest.mark.parametrize(
    "text",
    [
        "This is a question about my card: why was it declined?",
        "Here is my question: where is it?",
        "Note: penicillin allergy.",
        "Patient [1] reports pain, see [the chart](https://ward.example).",
        "I need to write down my PIN somewhere safe, where?",
        "Sorry, I don't have the text message with the code. Can you send it again?",
        "I'm sorry but I don't have any information about this fee, can you explain it?",
        "Sorry, I don't understand the question about my mother's name in the form.",
        "Sure I can pay with it abroad? Nobody told me.",
    ],
)
def test_text_that_only_resembles_a_fault_is_accepted(text: str) -> None:
    assert read(Completion(text), REQUEST).text == text
    assert fault(text) == ""


def test_offer_of_help_inside_text_tags_is_accepted() -> None:
    assert fault("<text>Sure, I can help you with that. Which card is it?</text>") == ""


def test_finish_reason_refusal_or_filter_counts_as_refused() -> None:
    assert fault("Sorry.", "refusal") == "refused"
    assert fault("", "filter") == "refused"


def test_cut_answer_that_is_mostly_complete_ends_at_its_last_sentence() -> None:
    begun = "<text>My card was declined. I tried it twice at the same till. Wha"
    kept = read(Completion(begun, finish="length"), REQUEST)
    assert (kept.text, kept.fault) == ("My card was declined. I tried it twice at the same till.", "")
    assert fault("Hello. My card was declined when I tried to pay for the", "length") == "cut"
    assert fault("My card was declined when I tried to pay for the", "length") == "cut"
    assert fault("", "length") == "cut"
    assert fault(begun) == ""
    assert fault(begun, "unknown") == "cut"
    assert fault(begun.removeprefix("<text>"), "length") == "cut"  # it may be thinking that came to no text
    assert read(Completion(begun.removeprefix("<text>"), finish="length"), CONTINUED) == kept
    assert fault(f"{begun}</text>", "length") == ""


def test_continuation_is_cut_at_its_stop_words() -> None:
    assert read(Completion(" My card is gone.\nCategory: card\nText: another"), CONTINUED).text == "My card is gone."
    assert read(Completion("\n My card is gone.\n\nText:"), CONTINUED).text == "My card is gone."


def test_a_continuation_that_ends_where_a_quotation_opens_is_cut() -> None:
    quoted = GenerationRequest("zero_shot", "card", 'Text: "', 1, style="completion", stop=('"', "\n"))
    assert read(Completion('I got "Error 5" twice.'), quoted).fault == "cut"
    assert read(Completion("I got ", finish=""), quoted).fault == "cut"
    assert read(Completion('My card is gone." said he'), quoted) == ReadText("My card is gone.")


def test_text_that_repeats_itself_is_rejected() -> None:
    circle = "I want to add an app to my account. How do I do this? " * 3
    assert fault(circle) == "says one thing over and over"
    assert read(Completion(circle), REQUEST, whole=False).fault == ""
    assert fault("Lost card. Lost card.") == ""
    refrain = "I called on Monday and nobody answered, I called on Tuesday and nobody answered, so I am writing now."
    assert fault(refrain) == ""


def test_answer_with_an_unfilled_placeholder_is_rejected() -> None:
    filled = GenerationRequest("fill_in", "card", "Fill in.", 1, parents=("my card is gone",))
    assert read(Completion("my _ is gone"), filled).fault == "placeholder"
    assert read(Completion("my card_number is gone"), filled).fault == ""


def test_text_in_another_language_than_the_task_s_is_a_fault() -> None:
    german = "Ich habe meine Karte verloren und das ist nicht gut für mich."
    assert fault(german, language="English") == "wrong language"
    assert fault(german, language="German") == ""
    assert fault(german) == ""
    assert fault("我的卡丢了，怎么办？", language="English") == "wrong language"
    assert fault(TEXT, language="Chinese") == "wrong language"
    assert fault(TEXT, language="Klingon") == ""


@pytest.mark.parametrize("name", ["handbook.jsonl", "mixed.jsonl", "test.jsonl"])
def test_short_notes_of_the_example_count_as_english(name: str) -> None:
    example = resources.files("undersong_server.operations").joinpath("example", name)
    texts = [json.loads(line)["text"] for line in example.read_text("utf-8").splitlines()]
    assert not [text for text in texts if is_other_language(text, "English")]
    assert not is_other_language("37 yr man c/o HA. no neck stiffness, no rash. sumatriptan no effect", "English")


@pytest.mark.parametrize(
    "text",
    [
        "No tengo fiebre, pero me duele el pecho y la espalda",
        "Não tenho febre, mas o peito dói com o esforço e uma tosse que não passa",
        "Ik heb koorts en pijn op de borst, en het hoesten is niet minder",
    ],
)
def test_note_in_a_language_similar_to_english_is_not_taken_for_english(text: str) -> None:
    assert is_other_language(text, "English")


def test_keyword_request_accepts_a_list_and_rejects_a_text() -> None:
    request = GenerationRequest("keywords", "card", "Name topics.", 1)
    listed = "Here are ten topics:\n1. lost card\n2. stolen card\n3. card fees"
    assert read(Completion(listed), request).fault == ""
    assert read(Completion(listed), request).text == listed
    assert read(Completion("I can't help with that request."), request).fault == "refused"
    assert read(Completion("My card was declined at the till."), request).fault == "no list"
    assert read(Completion("My card was declined at the till."), request, whole=False).fault == ""
    assert read(GenerationError("no"), request).fault == "failed"


NOTES = "40M with chest pain at rest.", "30F with a broken wrist.", "5M with fever and a rash."


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("\n".join(f"{number}. {note}" for number, note in enumerate(NOTES, 1)), False),
        ("\n\n".join(f"({number}) {note}" for number, note in enumerate(NOTES, 1)), False),
        ("Three triage notes:\n" + "\n".join(f"{number}) {note}" for number, note in enumerate(NOTES, 1)), False),
        ("١. رجل يشكو من ألم في الصدر.\n٢. امرأة تشكو من كسر في المعصم.", False),
        ("一、患者胸痛两小时，出汗。\n二、患者手腕骨折，肿胀。", False),
        ("\n".join(f"Note {number}: {note}" for number, note in enumerate(NOTES, 1)), False),
        ("54M with chest pain since six. Plan:\n1. ECG at once.\n2. Troponin at three hours.", True),
        ("54M with chest pain, plan:\n1. ECG at once.\n2. Troponin at three hours.", True),
        ("54M with chest pain since six.\n1. ECG at once.\n2. Troponin at three hours.\nWife informed.", True),
        ("1. Chest pain. 2. Troponin at three hours. 3. Wife informed.", True),
        ("1. Chest pain since six, pale and sweating.", True),
    ],
)
def test_several_numbered_texts_in_tags_are_told_from_one_numbered_text(text: str, is_kept: bool) -> None:
    found = read(Completion(f"<text>{text}</text>"), REQUEST, line_breaks=False)
    assert found == (ReadText(text) if is_kept else ReadText(text, SEVERAL))
    assert read(Completion(f"<text>{text}</text>"), REQUEST) == ReadText(text)


NURSE = Prompts(
    TaskWords(
        description="a nurse's triage note of a patient with chest pain or another complaint (adults only)",
        labels=("chest pain", "fracture"),
        label_descriptions={"chest pain": "the patient complains of pain, pressure (or tightness) in the chest or arm"},
    )
)


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (
            "zero_shot",
            1,
            "Nurse's triage note of a patient with chest pain: 54M, crushing since six this morning, pale and sweating,"
            " pulse 110, walked in with his wife.",
        ),
        (
            "zero_shot",
            2,
            "61F seen at 14:05. The patient complains of pain, pressure or tightness in the chest after stairs, none at"
            " rest, ECG done in bay 3, waiting for troponin.",
        ),
        (
            "metadata",
            3,
            "Sweating, left arm heavy since breakfast, 70M with chest pain or another complaint he hides; pulse 96,"
            " took his spray twice without effect.",
        ),
        (
            "keyphrases",
            4,
            "48F sweating, pain into the left arm for about 40 minutes, chest pain 8 of 10, no allergies.",
        ),
        (
            "paraphrase",
            5,
            "54M sweaty, chest pain since morning, now easing after aspirin given by the ambulance crew.",
        ),
        (
            "fill_in",
            6,
            "54M woke with chest pain this morning, sweaty and grey, brought by a neighbour in his own car.",
        ),
        ("contrast", 7, "54M with chest pain since morning. Second visit this week, troponin was normal on Monday."),
        ("random", 8, "It has to be clear to the family: chest pain at 39 is not always the heart. He was sent home."),
        ("zero_shot", 9, "An earlier attempt did not help: spray under the tongue twice, pain 7 of 10, 66M, pulse 58."),
        (
            "zero_shot",
            10,
            "Adults only in this bay, so her son waits outside; 44F, chest pain on breathing in, pulse 88.",
        ),
    ],
)
def test_text_that_uses_words_of_its_task_is_no_echo(kind: str, number: int, text: str) -> None:
    assert read(Completion(f"<text>{text}</text>"), asked_of(NURSE, kind, number)).fault == ""


def asked_of(prompts: Prompts, kind: str, number: int, label: str = "chest pain") -> GenerationRequest:
    good, parents, terms = (
        ("54M with chest pain since morning.",),
        ("54M, chest pain, sweaty.",),
        ("sweating", "left arm"),
    )
    further: dict[str, Any] = {"words": 40, "bad": (), "good_terms": (), "bad_reason": "far"}
    prompt = prompts.render(kind, number=number, label=label, good=good, parents=parents, terms=terms, **further)
    return GenerationRequest(
        *(kind, label, prompt.user, number, good),
        parents=parents,
        terms=terms,
        system=prompt.system,
        told=prompt.told,
    )


@pytest.mark.slow
def test_text_may_contain_one_hint_of_its_prompt_but_not_all() -> None:
    for language in ("English", "French", "German", ""):
        prompts = Prompts(TaskWords(description="a note", labels=("x", "y"), language=language))
        for number in range(24):
            request = asked_of(prompts, "zero_shot", number, "x")
            for hint in request.told:
                text = (
                    f"54M, bed 7, pulse 88; {hint} (nurse on duty), 12 12 13 14 15 18 21, seen at 9:40, home by noon."
                )
                assert read(Completion(f"<text>{text}</text>"), request).fault == "", (language, hint)
            hints = "; ".join(request.told[-3:])
            if len(hints.split()) > 9:
                assert read(Completion(f"<text>{hints.capitalize()}</text>"), request).fault == "echo of the prompt"


@pytest.mark.parametrize(
    "text",
    [
        "A nurse's triage note of a patient with chest pain or another complaint.",
        "Write a nurse's triage note of a patient with chest pain. 54M, pulse 88, sent home with aspirin and a letter.",
        "The patient complains of pain, pressure (or tightness) in the chest or arm.",
        "A note of the category chest pain. It has to be clear from the text alone that it is chest pain.",
        "54M with chest pain. Make it specific and natural, as a real one would be. Pulse 88, home with a letter.",
    ],
)
def test_text_that_repeats_the_instructions_is_rejected_as_an_echo(text: str) -> None:
    assert read(Completion(f"<text>{text}</text>"), asked_of(NURSE, "zero_shot", 1)).fault == "echo of the prompt"


def test_only_a_model_that_reads_its_prompt_can_echo_it() -> None:
    line = next(line for line in PROMPT.user.splitlines() if len(line.split()) > 8)
    echo = Completion(f"{TEXT}\n{line}")
    assert read(echo, REQUEST).fault == "echo of the prompt"
    assert read(echo, REQUEST, whole=False).fault == ""
    assert read(Completion("I am sorry, but I cannot help with that."), REQUEST, whole=False).fault == "refused"


def long_note(sections: int = 8) -> str:
    """A document with headings, a numbered plan and lines between its sections; some 600 words."""
    rng = random.Random(0)
    words = (
        "pain",
        "chest",
        "walked",
        "slept",
        "since",
        "Monday",
        "tablet",
        "doctor",
        "nurse",
        "ward",
        "breath",
        "left",
    )
    parts = []
    for number in range(sections):
        sentences = [" ".join(rng.choice(words) for _ in range(9)).capitalize() + "." for _ in range(7)]
        parts.append(f"## Section {'ABCDEFGHIJ'[number]}\n{' '.join(sentences)}\n1. {sentences[0]}\n2. {sentences[1]}")
    return "\n\n---\n\n".join(parts) + "\n\n## Outcome\nThe patient was discharged home."


def long_request(words: int) -> GenerationRequest:
    return GenerationRequest("zero_shot", "a", "Write a note.", 1, words=words)


def test_long_document_is_accepted_with_its_sections_and_end() -> None:
    note = long_note()
    assert len(note.split()) > 600
    found = read(Completion(f"<text>{note}</text>", 10, 900), long_request(700))
    assert not found.fault
    assert found.text.endswith("discharged home.")
    assert found.text.count("Section") == 8
    assert len(found.text.split()) > 0.95 * len(re.sub(r"[#-]", " ", note).split())
    assert read(Completion(note, 10, 900), long_request(60)).fault == SEVERAL  # of a short text, each part is one


def test_long_document_without_its_end_is_rejected_as_cut() -> None:
    whole = long_note()
    answer = Completion(whole[: int(len(whole) * 0.9)], 10, 900, finish="length")
    assert read(answer, long_request(700)).fault == CUT
    assert not read(
        Completion("It hurts since Monday, and I sleep badly at night. And I", 10, 9, finish="length"), long_request(20)
    ).fault


@pytest.mark.parametrize(
    "text",
    [
        '{"hr": 140} on the glove; 61F, palpitations since noon, grey and clammy.',
        '{"bp": "150/90"} on the glove; 61F, palpitations since noon, grey and clammy.',
        '{"bp": "150/90", "hr": 88}\n61F, palpitations since noon, pulse 140 and irregular.',
        '["61F", "Rosa"] stood on the card that she held, and she was grey and clammy.',
        "<61F> palpitations since noon, grey and clammy. </61F>",
    ],
)
def test_tagged_text_that_only_begins_like_data_is_accepted(text: str) -> None:
    assert read(Completion(f"<text>{text}</text>"), REQUEST) == ReadText(text)


@pytest.mark.parametrize(
    "data",
    [
        '{"bp": "150/90", "name": "Rosa"}',
        '{"bp": "150/90"}\n{"bp": "140/80"}',
        '[{"a": "b"}, {"a": "c"}]',
        '{"note": "61F, palpitations since noon", "hr":',
        "<note><a>61F</a><b>grey</b></note>",
    ],
)
def test_answer_that_is_json_or_a_table_is_rejected_even_within_tags(data: str) -> None:
    assert read(Completion(f"<text>{data}</text>"), REQUEST).fault == "page or data"


@pytest.mark.parametrize("kind", ["rewrite", "cross"])
def test_words_of_a_parent_are_no_echo_of_the_prompt(kind: str) -> None:
    beginning = "my new card was declined at the till this morning"
    prompt = f"Write another text that begins with the same words as this one.\n{beginning} and nobody helps"
    request = GenerationRequest(kind, "card", prompt, 1, parents=(f"{beginning} and nobody helps",))
    assert read(Completion(f"{beginning}, so I paid in cash."), request).fault == ""
    assert read(Completion("Another text that begins with the same words as mine."), request).fault == ECHO
