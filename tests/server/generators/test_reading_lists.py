"""Lists as models write them."""

from __future__ import annotations

import pytest

from undersong_server.generators.reading import listed

WANTED = ["lost card", "Computer vision for medical diagnostics", "card fees"]


@pytest.mark.parametrize(
    "answer",
    [
        "lost card, Computer vision for medical diagnostics, card fees",
        "Here are ten topics: lost card, Computer vision for medical diagnostics, card fees.",
        "Here you are:\n\n1. lost card\n2. Computer vision for medical diagnostics\n3. card fees\n\nLet me know!",
        "1) lost card\n2) Computer vision for medical diagnostics\n3) card fees",
        "- **lost card**: it is gone\n- **Computer vision for medical diagnostics** - with pictures\n- **card fees**",
        '["lost card", "Computer vision for medical diagnostics", "card fees"]',
        '```json\n{"names": ["lost card", "Computer vision for medical diagnostics", "card fees"]}\n```',
        "lost card\nComputer vision for medical diagnostics\ncard fees",
        "lost card; Computer vision for medical diagnostics; card fees",
        "1. lost card, 2. Computer vision for medical diagnostics, 3. card fees",
    ],
)
def test_items_are_read_from_every_list_format(answer: str) -> None:
    assert listed(answer) == WANTED


@pytest.mark.parametrize(
    ("answer", "items"),
    [
        ("بطاقة مفقودة، رسوم البطاقة، تحويل متأخر", ["بطاقة مفقودة", "رسوم البطاقة", "تحويل متأخر"]),
        ("۱. کارت گمشده\n۲. کارمزد\n۳. انتقال دیر", ["کارت گمشده", "کارمزد", "انتقال دیر"]),
        ("カード紛失、手数料、送金の遅れ", ["カード紛失", "手数料", "送金の遅れ"]),
        ("以下是关键词：\n1、丢卡\n2、手续费\n3、转账延迟", ["丢卡", "手续费", "转账延迟"]),
        ("胸痛・動悸・失神", ["胸痛", "動悸", "失神"]),
        ("Oto tematy: karta, opłaty, przelew", ["karta", "opłaty", "przelew"]),
    ],
)
def test_list_separators_of_any_script_are_recognised(answer: str, items: list[str]) -> None:
    assert listed(answer) == items


def test_overlong_list_item_is_dropped_and_the_others_kept() -> None:
    long = "a topic that goes on and on for many more words than a name has"
    assert listed(f"{', '.join(WANTED)}, {long}") == WANTED


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "My card was declined.",
        "The transfer of the money to my landlord is late again, and I want to know where on earth it is by now.",
        "[1, 2, 3]",
    ],
)
def test_plain_text_gives_no_list_items(answer: str) -> None:
    assert listed(answer) == []
