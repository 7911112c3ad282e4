"""The constants of the method ``undersong``, each with its unit and its reason; docs/method.md prints this table."""

from dataclasses import Field, dataclass, field, fields
from typing import Any


def _constant(value: Any, unit: str, reason: str) -> Any:
    return field(default=value, metadata={"unit": unit, "reason": reason})


@dataclass(frozen=True)
class Tuning:
    """Constants of the method. ``TUNING`` is the only instance that runs use."""

    part_labels: float = _constant(2.0, "part of the budget", "label shares need little precision")
    part_who: float = _constant(5.0, "part of the budget", "several generators only; its noise is spread over labels")
    part_verdict: float = _constant(3.0, "part of the budget", "noise below the chance of 300 records' answers")
    part_examples: float = _constant(2.0, "part of the budget, over all rounds", "examples only steer the prompts")
    part_last_votes: float = _constant(
        4.0, "part of the budget", "a third; in a live prototype the last votes gained most"
    )
    votes: int = _constant(8, "votes per record", "equal votes: their noise per vote is 1 / sqrt(8)")
    texts_per_vote: int = _constant(5, "texts of a label", "a record votes for a fifth of a label at most")
    texts_judged: int = _constant(3, "texts of a generator and label", "with fewer a classifier tells of luck")
    tie: float = _constant(
        1.0, "standard errors", "a generator within this distance of the best is not told from it and stays"
    )
    answer_variance: float = _constant(
        0.12, "per record", "of a centred answer, if classifiers differ on about half of the records"
    )
    training_variance: float = _constant(
        0.08,
        "of accuracy, times the generator's texts",
        "which texts it happened to write; more records do not lessen it",
    )
    by_label_variance: float = _constant(
        0.1, "of accuracy", "choices label by label tie a label to a style; 0.02 to 0.03 where that harmed"
    )
    certainty: float = _constant(2.0, "standard errors of the gain", "below it the cleaned mixture stays")
    kept_share: float = _constant(0.3, "of a label's texts", "the best share in the live prototype")
    rare: float = _constant(0.5, "of an equal share", "a label below it loses no text by a choice")
    examples: int = _constant(4, "texts in a prompt", "fits the context of a small model")
    shortlist: int = _constant(32, "texts of a label", "that examples are drawn from, so that prompts differ")
    strength: float = _constant(
        3.0, "inverse regularisation (C)", "that of the panel's words; its head chooses among less"
    )


TUNING = Tuning()


def table() -> str:
    """The constants as a Markdown table."""

    def row(each: Field[Any]) -> str:
        return f"| `{each.name}` | {each.default:g} | {each.metadata['unit']} | {each.metadata['reason']} |"

    return "\n".join(["| constant | value | unit | reason |", "|---|---|---|---|", *map(row, fields(Tuning))])
