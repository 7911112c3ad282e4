"""Judgement of a corpus: its figure with the interval, the meaning in plain words, and whether the records helped.

The rules stand in docs/judging.md.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from undersong_common.intervals import DIFFERENCE_WORDS, compare_words, difference_sign
from undersong_common.printable import counted, joined, printable, that_hold
from undersong_server.methods.parts.private_score import SUMS, ZeroShot, measured_words
from undersong_server.report.card_facts import RIGHT_ON
from undersong_server.report.data import (
    ALONE,
    DOUBTFUL_LABELS,
    MIXED_CASES,
    NO_PRIVATE_DATA,
    ZERO_SHOT,
    Accuracy,
    ReportData,
)

GUESSING = 0.1  # part of the way from guessing to all right, up to which a share is hardly better than guessing
READ_FIRST = "Read some texts of each label before you train on them."
DOUBTFUL = 0.2  # share of labels with which models disagree, from which on an alarm says so
READ_EMBEDDINGS = ("head", "mlp")  # the panel's models that see embeddings, as its description names them
FAR_FROM_TASK = (
    "Distances are of embeddings by which models of these texts tell labels apart hardly better than guessing:"
    " precision, recall, coverage, MAUVE and Frechet distance mean little here."
)
HELP = "effect of the records on quality"  # begins the clause that has the word of the records' help
UNPUBLISHED_CHOICE = "so their choice is not published"
UNMEASURED_HELP = f"Whether the records helped was {DIFFERENCE_WORDS[None]}."
UNFIT = "Not for training a model that you will use."
UNMEASURED = "How good it is was not measured: test it on real texts of your own before you train on it."
ABOVE_GUESSING = "Better than guessing."
BETTER = f"{ABOVE_GUESSING} The report says whether the hospitals' records helped."
HARDLY = "Hardly better than guessing: do not train on it; fit for testing programs."


NOT_MEASURED = DIFFERENCE_WORDS[None]
TEST_FILE = "a public test file"  # stands for a test file whose name is not known


def headline(data: ReportData) -> str:
    """Returns the sentence with the corpus's score, its interval, and what the score is a share of."""
    private_figure, own_accuracy = data.score, data.own_accuracy
    if private_figure is not None and private_figure.zero_shot is not None:
        return (
            f"{private_figure.figure} is the mean similarity of the hospitals' own records to the nearest of"
            f" {private_figure.zero_shot.texts} of these texts."
        )
    if own_accuracy is not None:
        return (
            f"{accuracy_words(own_accuracy)} {RIGHT_ON} {data.test_set or TEST_FILE}: so many of its texts get their"
            " true label from small models (the panel) that learned from this corpus alone."
        )
    if private_figure is None:
        return UNMEASURED
    return (
        f"{private_figure.figure} right on the hospitals' own records{scored_hospitals(data)},"
        f" {measured_words(is_private=data.privacy.is_private)}: so many of them get their true label from a classifier"
        " that learned from this corpus alone."
    )


def without_records(data: ReportData) -> str:
    """Returns the headline's figure beside texts that no private record has steered; "" if the headline has none."""
    private_figure = data.score
    if private_figure is not None and private_figure.zero_shot is not None:
        zero_shot = private_figure.zero_shot
        return f"{zero_shot.value:.2f} is that to the nearest of {zero_shot.texts} texts that no record has steered."
    if private_figure is None and data.own_accuracy is None:
        return ""
    own_accuracy, baselines = data.own_accuracy, list_baselines(data)
    if own_accuracy is None or not baselines:
        return f"From as many texts that no private record has steered: {NOT_MEASURED}."
    comparisons = " ".join(_compare(own_accuracy, figure, _name_baseline(figure, data)) for figure in baselines)
    compared_words = "those texts" if len(baselines) == 1 else "any of those other texts"
    return f"{comparisons} No private record steered {compared_words}."


def list_baselines(data: ReportData) -> list[Accuracy]:
    """Returns the panel on texts that no record has steered, those of the corpus's own generators alone first.

    Somebody who drops the other generators after reading a few texts gets as much without a record.
    """
    baselines = [figure for figure in data.published_accuracy if figure.reference]
    return sorted(baselines, key=lambda figure: not is_alone(figure))


def is_alone(figure: Accuracy) -> bool:
    """True for a baseline whose texts are from no other generators than those that wrote the corpus."""
    return figure.data.endswith(ALONE.format(""))


def _name_baseline(figure: Accuracy, data: ReportData) -> str:
    """Names a corpus that no record has steered, and of which generators its texts are."""
    name = figure.data.removesuffix(NO_PRIVATE_DATA)
    if figure.data == ZERO_SHOT:
        return f"{name} of {'all its generators' if len(data.generators) > 1 else joined(list(data.generators))}"
    return f"texts of {name}, ordered anew," if is_alone(figure) else name


def meaning(data: ReportData) -> str:
    """Returns the headline in numbers of 100 texts, beside guessing; "" where nothing is labelled or measured."""
    label_count = len(data.named_labels)
    own_accuracy, private_figure = data.own_accuracy, data.score
    if own_accuracy is not None:
        return plain_words(own_accuracy.accuracy, TEST_TEXTS, label_count)
    if private_figure is not None and private_figure.is_share:
        return plain_words(private_figure.value, OWN_RECORDS, label_count)
    return ""


def compare_with_frequent(data: ReportData) -> str:
    """Says what always answering with the most frequent label gives; "" if none is twice as frequent as equal ones."""
    if data.frequent_label is None:
        return ""
    label, share = data.frequent_label
    if share * len(data.named_labels) < MUCH_MORE_FREQUENT:
        return ""
    return (
        f"About {round(100 * share)} of 100 hospital records are labelled {printable(label, 60)}: a program that always"
        " says so labels as many of them rightly, and finds no record of another label."
    )


MUCH_MORE_FREQUENT = 2.0  # times the share that each label would have if all were equally frequent
TEST_TEXTS, OWN_RECORDS = "texts like those of the test file", "records like those of the hospitals"


def plain_words(share: float, of_what: str, labels: int) -> str:
    """Returns a share that is labelled rightly in numbers of 100 texts or records, beside guessing.

    Args:
        of_what: :data:`TEST_TEXTS` or :data:`OWN_RECORDS`.
        labels: number of the task's labels.
    """
    right, beside_words = round(100 * share), ""
    if labels > 1:
        beside_words = f"; by guessing among the {labels} labels, {round(100 / labels)} would be right"
    return (
        f"In plain words: of 100 {of_what}, small models that learn from this corpus label on average about {right}"
        f" rightly and about {100 - right} wrongly{beside_words}."
    )


def scored_hospitals(data: ReportData) -> str:
    """Names the hospitals of the sum that measured the score, where not all were in it."""
    sums = data.participation.sums if data.participation and not data.participation.is_whole else ()
    hospitals: list[str] = next((sorted(members) for name, members in sums if name in SUMS), [])
    if hospitals:
        return f", over the records of {counted(len(hospitals), 'hospital')} alone: {joined(hospitals)}"
    return ""


def accuracy_words(figure: Accuracy) -> str:
    """Returns a panel score with the interval that its test texts give it."""
    return f"{100 * figure.accuracy:.1f} %" if figure.by_texts is None else figure.by_texts.percent_words


def verdict(data: ReportData) -> str:
    """Returns in a sentence or two whether to train on the corpus at all, and whether the records helped."""
    private_figure = data.score
    if private_figure is not None and private_figure.zero_shot is not None:
        return records_help(data).words
    if not _measured_shares(data):
        return UNMEASURED
    if HARDLY in alarms_of(data):
        return HARDLY
    return records_help(data).words


def is_unfit(data: ReportData) -> bool:
    """True if nobody should train a model on the corpus for use."""
    return verdict(data) == HARDLY


def alarms(labels: int, low_shares: Iterable[float], wrong_labels: float = math.nan) -> tuple[str, ...]:
    """Returns what a reader must know first of a bad corpus, a sentence each; () where no measured figure is bad.

    Args:
        labels: number of the task's labels; below two no share says anything.
        low_shares: lower ends of the shares of real texts that models of the corpus label rightly.
        wrong_labels: share of the corpus's labels with which models disagree; NaN if it was not measured.
    """
    hardly_better = labels > 1 and any(is_guessing(labels, low) for low in low_shares)
    doubtful_words = f"{doubt_words(wrong_labels)} {READ_FIRST}"
    return tuple(that_hold((hardly_better, HARDLY), (wrong_labels >= DOUBTFUL, doubtful_words)))


def alarms_of(data: ReportData) -> tuple[str, ...]:
    """Returns the :func:`alarms` of a finished run."""
    return alarms(len(data.named_labels), _measured_shares(data), doubtful_share(data))


def doubtful_share(data: ReportData) -> float:
    """Returns the share of the corpus's labels with which models disagree; NaN if it was not measured."""
    return next((measure.value for measure in data.measures if measure.name == DOUBTFUL_LABELS), math.nan)


def doubt_words(share: float, decimals: int = 0) -> str:
    """Says how many labels models doubt, and that the texts are in the corpus all the same."""
    percent = f"{100 * share:.{decimals}f}"
    stayed_words = " Doubtful texts stayed in the corpus." if share else ""
    return (
        f"{percent} % of the labels are doubtful: models of embeddings that have not seen a text give it another label."
        f" {MIXED_CASES}{stayed_words}"
    )


def is_guessing(labels: int, low: float) -> bool:
    """True if ``low``, the lower end of a share that is labelled rightly, is hardly above guessing among the labels."""
    guessing_share = 1 / labels
    return low < guessing_share + GUESSING * (1 - guessing_share)


def caution(data: ReportData) -> str:
    """Says that distances mean little where every model that reads embeddings hardly beats guessing; "" elsewhere."""
    own_accuracy = data.own_accuracy
    if own_accuracy is None or len(data.named_labels) < 2:
        return ""
    model_accuracies = [
        accuracy for model_name, accuracy in own_accuracy.by_model.items() if model_name in READ_EMBEDDINGS
    ]
    interval_radius = 0.0 if own_accuracy.by_texts is None else own_accuracy.by_texts.value - own_accuracy.by_texts.low
    if model_accuracies and all(
        is_guessing(len(data.named_labels), accuracy - interval_radius) for accuracy in model_accuracies
    ):
        return FAR_FROM_TASK
    return ""


def _measured_shares(data: ReportData) -> list[float]:
    """Returns the lower ends of the private score and of the panel's, as far as they are measured."""
    if len(data.named_labels) < 2:
        return []
    low_ends = [data.score.low] if data.score is not None else []
    if data.own_accuracy is not None:
        accuracy_by_texts = data.own_accuracy.by_texts
        low_ends.append(data.own_accuracy.accuracy if accuracy_by_texts is None else accuracy_by_texts.low)
    return low_ends


@dataclass(frozen=True)
class RecordsHelp:
    """Judgement on the records' help, which card, report, Result and Compare share.

    Attributes:
        words: a sentence or more.
        sign: 1 if the records made the corpus better, -1 if worse, 0 if chance may explain the difference; None if it
            was not measured. Of several comparisons the least favourable one counts.
        is_of_choice: True if the records' choice was compared with all texts. A worse choice is not published.
    """

    words: str
    sign: int | None
    is_of_choice: bool = False

    @property
    def word(self) -> str:
        """The word for the sign; of a worse choice it adds that the choice is not published."""
        is_unpublished = self.is_of_choice and self.sign == -1
        return f"{DIFFERENCE_WORDS[self.sign]}{f', {UNPUBLISHED_CHOICE}' if is_unpublished else ''}"

    @property
    def clause(self) -> str:
        """The word after the name of what was compared, as a clause."""
        return f"{HELP}: {self.word}"


def similarity_help(value: float, zero_shot: ZeroShot) -> RecordsHelp:
    """Says if texts are nearer to the records than texts without records, by the mean similarity of both."""
    sign = difference_sign(value - zero_shot.value, zero_shot.error)
    comparison = compare_words(sign, "texts that no record has steered")
    return RecordsHelp(f"By similarity to the hospitals' records, this corpus is {comparison}.", sign)


def records_help(data: ReportData) -> RecordsHelp:
    """Says if the records helped: by similarity, or by the panel beside texts without records, or by their choice."""
    if data.score is not None and data.score.zero_shot is not None:
        return similarity_help(data.score.value, data.score.zero_shot)
    own_accuracy = data.own_accuracy
    baselines = [figure for figure in list_baselines(data) if figure.by_texts]
    if own_accuracy is not None and own_accuracy.by_texts and baselines:
        signs = [_difference_sign(own_accuracy, figure) for figure in baselines]
        return RecordsHelp(without_records(data), min(signs))
    if data.gain is None:
        return RecordsHelp(UNMEASURED_HELP, None)
    sign = difference_sign(*data.gain)
    comparison = compare_words(sign, "all texts")
    published_words = f", {UNPUBLISHED_CHOICE}" if sign == -1 else ""
    return RecordsHelp(
        f"The records' choice of texts and labels is {comparison}{published_words}.", sign, is_of_choice=True
    )


def _compare(ours: Accuracy, baseline: Accuracy, name: str) -> str:
    """Says by how much the corpus is better or worse than one that no record has steered, and if that is chance."""
    baseline_words = f"As many {name} reach {accuracy_words(baseline)}"
    if ours.by_texts is None or baseline.by_texts is None:
        return f"{baseline_words}."
    # The rounded figures are subtracted, because a reader sees and subtracts these.
    difference = round(100 * ours.accuracy, 1) - round(100 * baseline.accuracy, 1)
    distance_words = f"{abs(difference):.1f} percentage points {'less' if difference >= 0 else 'more'}"
    sign = _difference_sign(ours, baseline)
    judgement = f"this corpus is {DIFFERENCE_WORDS[sign]}" if sign else DIFFERENCE_WORDS[sign]
    return f"{baseline_words}, {distance_words} than this corpus: {judgement}."


def _difference_sign(ours: Accuracy, baseline: Accuracy) -> int:
    """Returns 1 if the corpus is better than the other one, -1 if worse, 0 if intervals meet or one has none."""
    if ours.by_texts is None or baseline.by_texts is None:
        return 0
    if ours.by_texts.low > baseline.by_texts.high:
        return 1
    return -1 if ours.by_texts.high < baseline.by_texts.low else 0
