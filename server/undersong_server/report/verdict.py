"""The verdict on a corpus: one sentence from its figures, and what it forbids. The rules stand in docs/judging.md."""

from undersong_common.intervals import Interval, told_apart
from undersong_server.report.data import NO_PRIVATE_DATA, ReportData

GUESSING = 0.1  # part of the way from guessing to all right, up to which a share is hardly better than guessing
READ_EMBEDDINGS = ("head", "mlp")  # the panel's models that see embeddings, as its description names them
FAR_FROM_TASK = (
    "Distances are of embeddings by which models of these texts tell labels apart hardly better than guessing:"
    " precision, recall, coverage, MAUVE and Frechet distance mean little here."
)
BY_SIMILARITY = {  # by the sign of the difference, 0 where chance explains it
    1: "Nearer to the hospitals' records than texts that no record has steered.",
    0: "Not shown to be nearer to the hospitals' records than texts that no record has steered.",
    -1: "Further from the hospitals' records than texts that no record has steered.",
}
BY_CHOICE = {
    1: "the records' choice of texts and labels made it better",
    0: "whether the records' choice of texts and labels made it better is within chance",
    # A choice that is worse is never published: its gain is below any certainty.
    -1: "the records' choice of texts and labels was worse than all texts, so it is not published",
}
UNFIT = "Not for training a model that you will use."
UNMEASURED = "How good it is was not measured: test it on real texts of your own before you train on it."
HARDLY = "Hardly better than guessing: do not train on it; fit for testing programs."


def verdict(data: ReportData) -> str:
    """Returns in a sentence or two how good the corpus is, and whether the records helped."""
    private_figure = data.score
    if private_figure is not None and private_figure.zero_shot is not None:
        gain = private_figure.value - private_figure.zero_shot.value
        return BY_SIMILARITY[told_apart(gain, private_figure.zero_shot.error)]
    measured_shares = _measured_shares(data)
    if not measured_shares:
        return UNMEASURED
    if any(is_guessing(data, low) for low in measured_shares):
        return HARDLY
    return f"Better than guessing{_tell_help(data)}."


def is_unfit(data: ReportData) -> bool:
    """True if nobody should train a model on the corpus for use."""
    return verdict(data) == HARDLY


def is_guessing(data: ReportData, low: float) -> bool:
    """True if ``low``, the lower end of a share that is labelled rightly, is hardly above guessing among the labels."""
    guessing_share = 1 / len(data.named_labels)
    return low < guessing_share + GUESSING * (1 - guessing_share)


def caution(data: ReportData) -> str:
    """Says that distances mean little where every model that reads embeddings hardly beats guessing; "" elsewhere."""
    own_accuracy = data.own_accuracy
    if own_accuracy is None or len(data.named_labels) < 2:
        return ""
    model_accuracies = [accuracy for name, accuracy in own_accuracy.by_model.items() if name in READ_EMBEDDINGS]
    interval_radius = 0.0 if own_accuracy.by_texts is None else own_accuracy.by_texts.value - own_accuracy.by_texts.low
    if model_accuracies and all(is_guessing(data, accuracy - interval_radius) for accuracy in model_accuracies):
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


def _tell_help(data: ReportData) -> str:
    """Says if the records helped, by the panel beside each corpus without records, else by the sum on the choice."""
    own_accuracy = data.own_accuracy
    baselines = [
        (figure.data.removesuffix(NO_PRIVATE_DATA), figure.by_texts)
        for figure in data.published_accuracy
        if figure.reference and figure.by_texts
    ]
    if own_accuracy is not None and own_accuracy.by_texts is not None and baselines:
        ours = own_accuracy.by_texts
        comparison_words = "; ".join(_compare(ours, interval, name) for name, interval in baselines)
        return f". In percentage points of accuracy on {data.test_set or 'the test file'}: {comparison_words}"
    if data.gain is None:
        return "; whether the records helped was not measured"
    return f"; {BY_CHOICE[told_apart(*data.gain)]}"


def _compare(ours: Interval, beside: Interval, name: str) -> str:
    """Says by how much the corpus is better or worse than one that no record has steered, and if that is chance."""
    difference = 100 * (ours.value - beside.value)
    distance_words = f"{abs(difference):.1f} {'above' if difference >= 0 else 'below'}"
    if ours.low > beside.high:
        return f"better than {name}, {distance_words}"
    if ours.high < beside.low:
        return f"worse than {name}, {distance_words}"
    return f"not shown to differ from {name}, {distance_words}, which is within chance"
