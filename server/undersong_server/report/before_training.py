"""What a receiver reads before training on a corpus: its weakest figures, in plain words, from what was measured."""

from collections.abc import Mapping

from undersong_common.printable import joined
from undersong_server.report.data import Measure, ReportData
from undersong_server.report.rows import describe_phrases
from undersong_server.report.verdict import DOUBTFUL, NOT_MEASURED, TEST_FILE, caution, doubt_words, doubtful_share

BEFORE = "Before you train"  # heading of the answer
NO_CONTRADICTIONS = "no figure here notices a text that contradicts itself or makes no sense."
NEIGHBOURS = {  # what a share of nearness means, by the measure's name
    "precision": "of 100 of these texts about {shown} lie among its texts (precision {value})",
    "recall": "of 100 of its texts about {shown} lie among these (recall {value})",
    "coverage": "of 100 of its texts about {shown} have one of these near (coverage {value}; about 97 in two halves of"
    " one set)",
}
EQUAL_IS_ONE = ("density", "MAUVE")  # measures that are 1 for equal sets
PANEL_MODELS = {  # the panel's models in a receiver's words
    "words": "a model that counts words",
    "head": "a linear model of embeddings",
    "mlp": "a small neural network of embeddings",
}


def describe_training(data: ReportData) -> tuple[str, ...]:
    """Returns what to read first, repeated phrases, doubtful labels, nearness, scores by model, and the test file."""
    read_words = "Read some texts of each label first" if data.named_labels else "Read some texts first"
    sentences = [
        f"{read_words}: {NO_CONTRADICTIONS}",
        describe_phrases(data) if data.samples else "",
        _describe_doubt(data),
        describe_nearness(data),
        caution(data),
        _describe_scores(data),
        _describe_test_file(data),
    ]
    return tuple(filter(None, sentences))


def describe_nearness(data: ReportData) -> str:
    """Says how near the corpus is to the test file, in numbers of 100 texts; "" if no such share was measured."""
    measure_by_name = {measure.name: measure for measure in data.measures}
    clauses = [
        words.format(shown=round(100 * measure_by_name[name].value), value=measure_by_name[name].shown)
        for name, words in NEIGHBOURS.items()
        if name in measure_by_name
    ]
    clauses += _list_unit_measures(measure_by_name)
    return f"Beside {data.test_set or TEST_FILE}: {'; '.join(clauses)}." if clauses else ""


def _list_unit_measures(measure_by_name: Mapping[str, Measure]) -> list[str]:
    figures = [f"{name} {measure_by_name[name].shown}" for name in EQUAL_IS_ONE if name in measure_by_name]
    return [f"{joined(figures)}, where equal sets have 1"] if figures else []


def _describe_doubt(data: ReportData) -> str:
    """Says how many labels models doubt; "" where that was not measured, or is told first because it is bad."""
    share = doubtful_share(data)
    return doubt_words(share, decimals=1) if share < DOUBTFUL else ""


def _describe_scores(data: ReportData) -> str:
    """Says how the score differs by model and label, and that real texts were not tried."""
    own_accuracy, test_set = data.own_accuracy, data.test_set or TEST_FILE
    if own_accuracy is None:
        return ""
    model_words = [
        f"{PANEL_MODELS.get(name, name)} {100 * accuracy:.1f} %" for name, accuracy in own_accuracy.by_model.items()
    ]
    mean_words = f"The score on {test_set} is the mean of {', '.join(model_words)}. " if model_words else ""
    return (
        f"{mean_words}By label: the rarest one's score stands under further measures, the others' are {NOT_MEASURED}."
        f" What models reach that learn from real texts: {NOT_MEASURED}."
    )


def _describe_test_file(data: ReportData) -> str:
    if not data.test_hash:
        return ""
    ask_words = data.publication.contact or "the makers"
    return (
        "The test file is not in this folder. Whether its texts are real, and where they are from, these files do not"
        f" say: ask {ask_words}. Its SHA-256 is {data.test_hash}."
    )
