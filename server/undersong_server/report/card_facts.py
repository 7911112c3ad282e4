"""Facts that a published card states in the program's own sentences, so that ``undersong verify`` can compare them."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from undersong_server.report.terms import DEMONSTRATION, STATED_SOURCE

TEST_FILE_HASH = "The test file is not in this folder. Its SHA-256 is {}."
RIGHT_ON = "right on"  # stands in the card's score between the share and the name of the test file
_HASH = re.compile(f"^{re.escape(TEST_FILE_HASH.format('HASH')).replace('HASH', '([0-9a-f]{64})')}$", re.MULTILINE)
_SCORE = re.compile(rf"^([\d.]+) % (?:\([\d.]+ to [\d.]+\) )?{RIGHT_ON} ", re.MULTILINE)

_SOURCE = re.compile(f"^{STATED_SOURCE.format(name='(?P<name>.+?)', statement='(?P<statement>.+)')}$", re.MULTILINE)


@dataclass(frozen=True)
class CardFacts:
    """Facts of a card whose hash is the signed one.

    Attributes:
        is_here: True if the card is in the folder; test_hash: SHA-256 (hex) of its test file, "" if it names none.
        sources: its makers' statement on the source of each generator's texts, by the generator's name.
        invented_records: True if it states that every record behind the corpus is invented.
        score: share of the test file's texts that the panel labels rightly, in per cent; None without one.
    """

    is_here: bool = False
    test_hash: str = ""
    score: float | None = None
    invented_records: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)


def read_card_facts(card: str) -> CardFacts:
    """Returns the facts of a card in Markdown, as :mod:`undersong_server.report.html` has written it."""
    test_hash, score = _HASH.search(card), _SCORE.search(card)
    return CardFacts(
        is_here=True,
        test_hash=test_hash[1] if test_hash else "",
        score=float(score[1]) if score else None,
        sources={_unescape(match["name"]): _unescape(match["statement"]) for match in _SOURCE.finditer(card)},
        invented_records=any(line.startswith(DEMONSTRATION) for line in card.splitlines()),
    )


def _unescape(words: str) -> str:
    """Turns escaped Markdown of a card back into the words that were escaped."""
    return html.unescape(re.sub(r"\\(.)", r"\1", words))
