"""Answers as language models write them, and the text that is meant."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples, slow_but
from undersong_server.generators.cleaning import TAG, clean, duplicate_key, is_empty, readable

PROMPT = "Write a customer's question.\nReply with the text only: no title, no quotes, no comment."
WANTED = "My card was declined at the till, what can I do?"


@pytest.mark.heavy
@pytest.mark.parametrize(
    "raw",
    [
        WANTED,
        f"  {WANTED}\n\n",
        f'"{WANTED}"',
        f"“{WANTED}”",
        f"'{WANTED}'",
        f"**{WANTED}**",
        f"***\n{WANTED}",
        f"1. {WANTED}",
        f"- {WANTED}",
        f"# {WANTED}",
        f"Sure, here is a new text:\n\n{WANTED}",
        f"Sure! Here's a question of the category “card”:\n\n1. **“{WANTED}”**\n\nLet me know if you need more.",
        f"Certainly!\n{WANTED}",
        f"Here is one example of such a text: {WANTED}",
        f"Text: {WANTED}",
        f"New text:\n{WANTED}",
        f"Category: card\n{WANTED}",
        f"{WANTED}\nLabel: card",
        f"{WANTED}\n\n(Note: this text is fictional.)",
        f"{WANTED}\n\nI hope this helps!",
        f"```\n{WANTED}\n```",
        f"```text\n{WANTED}\n```",
        f"<p>{WANTED}</p><br/>",
        WANTED.replace("till,", "till,&#32;"),
        f"{PROMPT}\n{WANTED}",
        f"{PROMPT} {WANTED}",
        f"Reply with the text only: no title, no quotes, no comment.\n{WANTED}",
        f"Assistant: {WANTED}",
        f"{WANTED}<|im_end|>\n<|im_start|>user\nAnother one, please.",
        f"<|im_start|>assistant\n{WANTED}<|im_end|>",
        f"<|start_header_id|>assistant<|end_header_id|>\n\n{WANTED}<|eot_id|>",
        f"[INST] {PROMPT} [/INST] {WANTED}</s>",
        f"<start_of_turn>model\n{WANTED}<end_of_turn>",
        f"{WANTED}\nUser: thanks\nAssistant: you are welcome",
        f"{WANTED}\n### Instruction:\nWrite another one.",
        f"<think>The bad ones are longer. Hm, </think>\n{WANTED}",
        f"The bad ones are longer.</think>\n\n{WANTED}",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{WANTED}<|return|>",
        f"The good ones are short.\n<text>{WANTED}</text>",
        f"The good ones are short.\n<text>\n{WANTED}",
        WANTED.replace("card", "ca\u200brd").replace(" at", "\t at\ud83d"),
    ],
)
def test_cleaning_removes_wrapping_around_a_text(raw: str) -> None:
    assert clean(raw, prompt=PROMPT).text == WANTED


@pytest.mark.parametrize(
    "text",
    [
        "Here is my problem: the card was swallowed.",
        "I'm sorry, but I can't find my card anywhere.",
        "I don't know; the app says 'declined'.",
        '"Alien" and "Aliens" are both good.',
        "1. Hypertension: continue lisinopril.\n2. Diabetes: check HbA1c.",
        "Great film. Here is why: the plot.",
        "Note: penicillin allergy.",
        "BP 120/80, HR 64, 5 < 6 and 2*3*4 = 24, snake_case_name stays.",
        "Okay, so the transfer failed again.",
        "Patient: I feel sick.\nDoctor: Since when?",
        "3.5 mg twice daily",
        "1. Cancer. 2. Coronary artery disease.",
        "<B> is a better film than <I>.",
        "Absolutely...\nexcellent.",
        "as an AI banking assistant Can I have a card in addition?",
    ],
)
def test_cleaning_keeps_a_text_that_only_looks_like_wrapping(text: str) -> None:
    assert clean(text, prompt=PROMPT).text == text


@pytest.mark.parametrize(
    "raw",
    [
        "",
        " \n\t",
        '"..."',
        "---",
        "<|im_end|>",
        PROMPT,
        "<think>I keep thinking and never answer",
    ],
)
def test_cleaning_an_answer_without_words_gives_an_empty_text(raw: str) -> None:
    assert clean(raw, prompt=PROMPT).text == ""


WRAPPING = [
    "Sure, here is a text:\n",
    '"',
    "**",
    "1. ",
    "- ",
    "\n",
    "<text>",
    "</text>",
    "</s>",
    "<|im_start|>",
    "Text: ",
    "Label: x\n",
    "&amp;",
    "lt;br&gt;",
    "\nUser: ",
    "word ",
    "don't. ",
    "# ",
    "```",
    "<think>",
    "</think>",
    "'",
    "…",
    "[INST]",
]


@settings(max_examples=examples(50, 200), deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WRAPPING), max_size=14).map("".join)))
@example("&amp;amp;lt;b&amp;amp;gt;x")
@example("<TEXT>:<s>")
@pytest.mark.heavy
def test_cleaning_twice_is_cleaning_once(raw: str) -> None:
    once = clean(raw).text
    if not TAG.search(raw):  # what stood between tags is the text, whatever it looks like
        assert clean(once).text == once
    assert once.encode("utf-8").decode("utf-8") == once  # no lone surrogate may reach a file
    assert once == "" or not is_empty(once)


def test_cleaning_drops_the_draft_before_unfinished_thinking():
    assert clean("54M with a cough, bed 7.\n<think>Is that what they").text == ""
    assert clean("<text>54M with a cough, bed 7.</text>\n<think>Is that what they").text == ""


def test_one_tagged_word_counts_as_a_text_only_when_it_stands_alone():
    assert clean("<text>Splendid!</text>").text == "Splendid!"
    assert clean("It stands between <text>and</text>: My card.").tagged == []


def test_cleaning_takes_the_last_of_several_tagged_texts() -> None:
    answer = "<text>The card was lost.</text> Better: <text>The card was declined.</text>"
    assert clean(answer).text == "The card was declined."


PIECES = ["<", "Sure, ", "**a", "\n", '"', "<think>", "&amp;", "here is ", "1. ", "_ ", "```\n"]


@pytest.mark.slow
@pytest.mark.parametrize("piece", slow_but(PIECES, ["<", "<think>", "1. "]))
def test_cleaning_any_answer_is_fast(piece: str) -> None:
    started = time.process_time()
    clean(piece * (40_000 // len(piece)))
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize(
    "sequence",
    ["\x1b[2J", "\x1b[1;31m", "\x1b[?25l", "\x1b[2 q", "\x9b31m", "\x1b]0;title\x07", "\x1b]8;;a\x1b\\", "\x1b(B"],
)
def test_cleaning_removes_terminal_control_sequences_completely(sequence: str) -> None:
    assert readable(f"seen at {sequence}noon{sequence}") == "seen at noon"


def test_brackets_without_an_escape_character_stay_in_a_text() -> None:
    assert readable("pain [2J/kg], \x1bMore") == "pain [2J/kg], More"


def test_duplicate_key_ignores_case_punctuation_and_spacing() -> None:
    assert duplicate_key("“My card — declined!”") == duplicate_key("my\ncard   declined")
    assert duplicate_key("ﬁne CAFÉ") == duplicate_key("fine cafe\u0301".replace("e\u0301", "é"))
    assert duplicate_key("BP 120") != duplicate_key("BP 121")
    assert duplicate_key("?!") == ""
