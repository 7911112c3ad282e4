"""Classes of characters, compared with Unicode's properties as the library ``regex`` has them."""

from __future__ import annotations

import re
import sys

import pytest
import regex  # type: ignore[import-untyped]

from undersong_server.generators.reading import whole_sentences
from undersong_server.prompts.scripts import TERMINALS


@pytest.mark.heavy
def test_sentences_end_with_the_marks_that_unicode_names() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert set(re.findall(f"[{TERMINALS}.!?]", everything)) == set(regex.findall(r"\p{Sentence_Terminal}", everything))


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("دل میں درد ہے۔ کل سے بخار ہے۔ اور", "دل میں درد ہے۔ کل سے بخار ہے۔"),
        ("सीने में दर्द है। कल से बुखार है। और", "सीने में दर्द है। कल से बुखार है।"),
        ("Կուրծքը ցավում է։ Եր", "Կուրծքը ցավում է։"),
        ("胸が痛い。昨日から熱があ", "胸が痛い。"),
        ("「胸が痛い。」と言っ", "「胸が痛い。」"),
        ("ปวดหน้าอกตั้งแต่เช้า หายใจไม่ออก เหงื่", "ปวดหน้าอกตั้งแต่เช้า หายใจไม่ออก"),
        ("ឈឺទ្រូងតាំងពីព្រឹក។ ហើយ", "ឈឺទ្រូងតាំងពីព្រឹក។"),
        ("الألم في الصدر منذ الصباح؟ لا أع", "الألم في الصدر منذ الصباح؟"),
        ("Dose 12.5 mg at 8 a.m. today", "Dose 12.5 mg at 8 a.m."),
    ],
)
def test_a_text_is_cut_after_its_last_sentence_in_any_script(cut: str, whole: str) -> None:
    assert whole_sentences(cut) == whole
