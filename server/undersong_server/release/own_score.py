"""The score of a published corpus on a test file of the receiver's, beside the one that the corpus's card states."""

from dataclasses import dataclass, field

from undersong_server.report.card_facts import CardFacts

LARGEST_DIFFERENCE = 0.5  # percentage points: another machine's models may decide a few of the test texts otherwise


@dataclass(frozen=True)
class OwnScore:
    """A measured score, and its comparison with the card.

    Attributes:
        test: name of the test file; test_hash: its SHA-256 (hex), "" if it is no file.
        sentence: the measured figure in words; score: that figure in per cent, None if it was not measured.
        by_label: share of each label's test texts that are labelled rightly.
        card: facts of the card; card_is_of_these_texts: False if texts were left out after the card was scored.
    """

    test: str
    test_hash: str
    sentence: str
    score: float | None = None
    by_label: dict[str, float] = field(default_factory=dict)
    card: CardFacts = field(default_factory=CardFacts)
    card_is_of_these_texts: bool = True

    @property
    def is_card_test_file(self) -> bool | None:
        """True if the file is the one that the card names, by its SHA-256; None if the card is not here or names none.

        None too if the test texts are no file.
        """
        return self.card.test_hash == self.test_hash if self.card.test_hash and self.test_hash else None

    @property
    def agrees_with_card(self) -> bool | None:
        """True if the score is the card's, measured on the same file; None if there is nothing to compare."""
        if not (self.is_card_test_file and self.card_is_of_these_texts):
            return None
        if self.score is None or self.card.score is None:
            return None
        return abs(self.score - self.card.score) <= LARGEST_DIFFERENCE

    @property
    def comparison(self) -> str:
        """Says if the file is the card's, and if the score agrees with the card's."""
        if not self.card.is_here:
            return "Whether this is the test file that the card names cannot be told: README.md is not here."
        if self.is_card_test_file is None:
            return "The card names no test file to compare with."
        card_words = "" if self.card.score is None else f" The card's score is {self.card.score:.1f} %."
        if not self.is_card_test_file:
            return (
                f"This is not the test file that the card names, by its SHA-256 ({self.card.test_hash[:16]}...)."
                f"{card_words}"
            )
        same_words = "This is the test file that the card names, by its SHA-256"
        if self.agrees_with_card is None:
            return f"{same_words}.{card_words}"
        if self.agrees_with_card:
            return (
                f"{same_words}, and the score agrees with the card's {self.card.score:.1f} %: no new text was tested."
            )
        return f"{same_words}, and the score does NOT agree with the card's {self.card.score:.1f} %."

    def to_json(self) -> dict[str, object]:
        return {
            "test": self.test,
            "test_sha256": self.test_hash,
            "sentence": self.sentence,
            "score_percent": self.score,
            "by_label": self.by_label,
            "is_card_test_file": self.is_card_test_file,
            "card_score_percent": self.card.score,
            "agrees_with_card": self.agrees_with_card,
        }
