"""What a receiver reads before training on a corpus: its weakest figures, in plain words, from what was measured."""

from collections.abc import Mapping

from undersong_common.printable import joined, printable
from undersong_server.methods.undersong import CLEANED
from undersong_server.report.data import ReportData
from undersong_server.report.rows import describe_phrases
from undersong_server.report.verdict import DOUBTFUL, NOT_MEASURED, TEST_FILE, caution, doubt_words, doubtful_share

BEFORE = "Before you train"  # heading of the answer
NO_CONTRADICTIONS = "no figure here notices a text that contradicts itself or makes no sense."
NEIGHBOURS = {  # what a share of nearness means, by the measure's name
    "precision": "about {shown} of 100 corpus texts lie where test texts lie (precision {value})",
    "recall": "about {shown} of 100 test texts lie where corpus texts lie (recall {value})",
    "coverage": "about {shown} of 100 test texts have a corpus text near (coverage {value}; about 0.97 in two halves of"
    " one set)",
}
EQUAL_IS_ONE = ("density", "MAUVE")  # measures that are 1 for equal sets
# each measure by which a corpus is like the test texts, with its value for equal sets
ALIKE = {"coverage": 0.97, "density": 1.0, "MAUVE": 1.0}
REAL_TEXTS = f"What models reach that learn from real texts: {NOT_MEASURED}"
SHOWN_LABELS = 8  # labels whose scores a sentence has
LITTLE, MUCH = 0.25, 0.75  # share of these values below or above which all of them are "little" or "much"
WHY_STAYED = " A text was left out only where models of words contradict its label, too."
PANEL_MODELS = {  # the panel's models in a receiver's words
    "words": "a model that counts words",
    "head": "a linear model of embeddings",
    "mlp": "a small neural network of embeddings",
}


def describe_training(data: ReportData) -> tuple[str, ...]:
    """Returns what to read first, repeated phrases, nearness, scores by model, doubtful labels and other labels."""
    read_words = "Read some texts of each label first" if data.named_labels else "Read some texts first"
    sentences = [
        f"{read_words}: {NO_CONTRADICTIONS}",
        describe_phrases(data) if data.samples else "",
        describe_nearness(data),
        caution(data),
        _describe_scores(data),
        _describe_doubt(data),
        data.mismatches.sentence if data.named_labels else "",
    ]
    return tuple(filter(None, sentences))


def judge_likeness(value_by_name: Mapping[str, float]) -> str:
    """Returns the degree in which a corpus looks like the test texts, by :data:`ALIKE`; "" if none of these is there.

    "little" and "much" need all measures; whatever lies between, or where measures disagree, is "in part".

    >>> judge_likeness({"coverage": 0.173, "density": 0.057, "MAUVE": 0.032})
    'little'
    >>> judge_likeness({"coverage": 0.9, "density": 0.2}), judge_likeness({"recall": 0.3})
    ('in part', '')
    """
    shares = [value_by_name[name] / value_if_equal for name, value_if_equal in ALIKE.items() if name in value_by_name]
    if not shares:
        return ""
    if max(shares) < LITTLE:
        return "little"
    return "much" if min(shares) > MUCH else "in part"


def describe_nearness(data: ReportData) -> str:
    """Says how near the corpus is to the test file, in words and numbers of 100 texts; "" if nothing was measured."""
    shown_by_name = {measure.name: measure.shown for measure in data.measures}
    return nearness_words({measure.name: measure.value for measure in data.measures}, shown_by_name, data.test_set)


def nearness_words(value_by_name: Mapping[str, float], shown_by_name: Mapping[str, str], test_set: str) -> str:
    """Says how near a corpus with these figures is to a test file; "" if none of them is about that.

    Args:
        shown_by_name: the same figures, formatted.
        test_set: name of the test file; "" if it is not known.
    """
    degree = judge_likeness(value_by_name)
    opening = f"The corpus looks {degree} like the test texts of" if degree else "Beside"
    clauses = [
        words.format(shown=round(100 * value_by_name[name]), value=shown_by_name[name])
        for name, words in NEIGHBOURS.items()
        if name in value_by_name
    ]
    clauses += _list_unit_measures(shown_by_name)
    return f"{opening} {test_set or TEST_FILE}: {'; '.join(clauses)}." if clauses else ""


def _list_unit_measures(shown_by_name: Mapping[str, str]) -> list[str]:
    figures = [f"{name} {shown_by_name[name]}" for name in EQUAL_IS_ONE if name in shown_by_name]
    return [f"{joined(figures)}, where equal sets have 1"] if figures else []


def _describe_doubt(data: ReportData) -> str:
    """Says how many labels models doubt, and why these texts stayed; "" if unmeasured, or told first as it is bad."""
    share = doubtful_share(data)
    if not share < DOUBTFUL:
        return ""
    has_cleaned = any(CLEANED in remark for remark in data.remarks)
    return f"{doubt_words(share, decimals=1)}{WHY_STAYED if has_cleaned and share else ''}"


def _describe_scores(data: ReportData) -> str:
    """Says how the score differs by model and label, and that real texts were not tried."""
    own_accuracy, test_set = data.own_accuracy, data.test_set or TEST_FILE
    if own_accuracy is None:
        return ""
    model_words = [
        f"{PANEL_MODELS.get(name, name)} {100 * accuracy:.1f} %" for name, accuracy in own_accuracy.by_model.items()
    ]
    mean_words = f"The score on {test_set} is the mean of {', '.join(model_words)}. " if model_words else ""
    return f"{mean_words}{describe_labels(own_accuracy.by_label)}{REAL_TEXTS}."


def describe_labels(share_by_label: Mapping[str, float]) -> str:
    """Says how many test texts of each label get it, the weakest labels first; of many labels the weakest alone."""
    labels_by_score = sorted(share_by_label, key=lambda label: (share_by_label[label], label))
    shown_labels = [
        f"{printable(label, 60)} {100 * share_by_label[label]:.0f} %" for label in labels_by_score[:SHOWN_LABELS]
    ]
    scope_words = (
        f", the weakest {SHOWN_LABELS} of {len(labels_by_score)}" if len(labels_by_score) > SHOWN_LABELS else ""
    )
    return f"By label{scope_words}: {', '.join(shown_labels)}. " if shown_labels else ""


def _doubt_test_texts(data: ReportData) -> str:
    """Says where a generator may have learned from the test texts, because one source is stated for both; else ""."""
    test_source = data.test_source.rstrip(".")
    names = [source.name for source in data.terms.sources if source.statement.rstrip(".") == test_source]
    if not names:
        return ""
    verb = "has" if len(names) == 1 else "have"
    return (
        f" The same is stated of the texts of {joined(names)}: whether {joined(names)} {verb} learned from the test"
        f" texts, which would raise the score, these files do not say{data.terms.ask()}."
    )


def describe_test_file(data: ReportData) -> str:
    """Says what the makers state of the test file's origin, or that they state nothing; "" if there is no file."""
    if not data.test_hash:
        return ""
    if data.test_source:
        return f"The test texts, as the makers state: {data.test_source.rstrip('.')}.{_doubt_test_texts(data)}"
    return f"Whether the test texts are real, and where they are from, these files do not say{data.terms.ask()}."
