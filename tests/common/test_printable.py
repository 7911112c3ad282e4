"""What a peer wrote can be read, and can do nothing else: no cursor moved, no line forged, nothing hidden."""

import json
import subprocess
import unicodedata
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.forgeries import FORGERIES, harmless
from tests.doubles.pace import examples
from undersong_common.errors import PrivacyRefusal
from undersong_common.printable import json_text, name_fault, printable, printable_lines, shell_word
from undersong_common.program.entry import run
from undersong_common.program.terminal import show_rows


def test_forging_characters_are_made_visible_and_refused_in_names():
    for forged in FORGERIES:
        shown = printable(forged)
        assert harmless(shown), ascii(forged)
        assert "\n" not in shown
        assert name_fault(forged, 300), ascii(forged)


@given(st.text())
def test_printable_string_is_short_and_on_one_line(text):
    shown = printable(text, 60)
    assert harmless(shown)
    assert "\n" not in shown
    assert len(shown) <= 60 + len("...") + 2
    assert unicodedata.bidirectional(shown[:1] or "L") not in ("R", "AL", "AN")


@pytest.mark.heavy
@given(st.text(alphabet=st.characters(categories=("Lu", "Ll", "Nd", "Po")), min_size=1, max_size=40))
def test_printable_leaves_ordinary_text_unchanged(text):
    assert printable(text).strip("\u200e") == text


@pytest.mark.heavy
@settings(max_examples=examples(25, 100))
@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_printed_json_keeps_its_value_and_is_harmless(value):
    text = json_text(value)
    assert json.loads(text) == value
    assert harmless(text.replace("\n", ""))


@given(st.text(alphabet=[chr(point) for point in range(128)], max_size=12))
def test_ascii_is_shown_as_it_is_beside_a_letter_of_another_script(text):
    assert printable(text) + "\u00e9" == printable(text + "\u00e9")
    assert json_text([text])[:-3] == json_text([text + "\u00e9"])[:-4]
    assert printable("x" + text, 1) == "x" + "..." * bool(text)


def test_right_to_left_letters_do_not_reorder_text_beside_them():
    assert printable("\u05d0\u05d1 5") == "\u200e\u05d0\u05d1 5\u200e"
    assert name_fault("\u05d0\u05d1", 20) == ""


def test_overlong_names_and_names_with_outer_spaces_are_refused():
    assert "81 characters" in name_fault("a" * 81, 80)
    for wrong in (" a", "a ", "a  b", "", None, 5):
        assert name_fault(wrong, 80)


def test_printed_error_keeps_line_breaks_and_escapes_control_characters():
    assert printable_lines("error: a\x1b[2Jb\n  remedy: none") == "error: a\\x1b[2Jb\n  remedy: none"


def fails(words):
    raise PrivacyRefusal(words, "look at it")


def test_tables_and_errors_escape_control_characters(capsys):
    for forged in FORGERIES:
        show_rows(("run", "state"), [(forged, "pending")], "nothing")

        with pytest.raises(SystemExit):
            run(partial(fails, printable(forged)))
        said = capsys.readouterr()
        assert len(said.out.splitlines()) == len(said.err.splitlines()) == 2, ascii(forged)
        assert harmless(said.out.replace("\n", "").replace("\t", "")), ascii(forged)
        assert harmless(said.err.replace("\n", "")), ascii(forged)


@pytest.mark.parametrize("name", ["spring", "it's $(echo run)", "`echo run`; echo 'a' \"b\" $HOME \\"])
def test_quoted_name_reaches_the_shell_unchanged(name):
    said = subprocess.run(["sh", "-c", f"printf %s {shell_word(name)}"], capture_output=True, check=True).stdout
    assert said.decode() == name
