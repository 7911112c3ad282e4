"""Strings with which a peer would forge what a person reads, and the rule that none of their power is left."""

import unicodedata

FORGERIES = (
    "a\x1b[2J\x1b[1;1Hb",  # clears the screen
    "a\x1b]0;title\x07b",
    "a\rb",  # overwrites the line
    "a\nepsilon 0.1 at delta 1e-09",  # a line of its own
    "a\r\nThis party approves it",
    "a\x0bb",
    "a\x0cb",
    "a\x08b",
    "a\x00b",
    "a\x7fb",
    "a\x85b",  # C1: next line
    "a\x9b2Jb",  # C1: control sequence introducer
    "a\u2028b",
    "a\u2029b",
    "a\u202e1.0 nolispe\u202cb",  # right-to-left override
    "a\u2066b\u2069",
    "a\u200fb",
    "a\u200eb",
    "a\u061cb",
    "a\u200bb",  # zero width
    "a\u200db",
    "a\ufeffb",
    "a\u00adb",  # soft hyphen
    "a\u3164b",  # blank letters
    "a\u2800b",
    "a\u00a0b",
    "a\u3000b",
    "a" + "\u0301" * 20,  # reaches into the lines above
    "a\U000e0041b",  # tags
    "a\ufe0fb",
    "a\ue000b",
    "a\ud800b",  # half a pair
    "a" + " " * 60 + "b",  # pushes what follows to the next line of the terminal
)


def harmless(shown: str) -> bool:
    """Whether every character of one line is visible; left-to-right marks only at its ends."""
    marks = {"\u200e"} if any(unicodedata.bidirectional(each) in ("R", "AL", "AN") for each in shown) else set()
    return all(each.isprintable() or each in marks for each in shown)
