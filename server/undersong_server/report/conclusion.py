"""The one sentence on what a corpus is fit for and what it is not, from the figures that were measured."""

from collections.abc import Mapping

from undersong_server.report.before_training import judge_likeness
from undersong_server.report.data import ReportData
from undersong_server.report.verdict import HARDLY, OWN_RECORDS, TEST_TEXTS, UNMEASURED, caution, records_help, verdict

FIT_FOR_EXERCISES = "Fit for exercises and tests of pipelines"
NOT_COMPARED = "not compared with models that learn from real texts, so no sign that it is fit for a product"
LEARNERS: Mapping[str, str] = {  # begins the clause on the share that is labelled wrongly, by what it is a share of
    TEST_TEXTS: "the panel's classifiers that learn from it label, as a mean,",
    OWN_RECORDS: "a classifier that learns from it labels",
}
LIKENESS_CLAUSES: Mapping[str, str] = {  # by the degree in which the corpus looks like the test texts
    "little": "not a stand-in for the test texts, which it looks little like",
    "in part": "in part like the test texts",
    "much": "much like the test texts",
}


def conclude(data: ReportData) -> str:
    """Says what a corpus is fit for, with its score, the records' help and its nearness to the test file.

    No figure of a run compares it with real texts, so that none recommends it for a model that is used. Where no share
    of texts labelled rightly was measured, or it is hardly better than guessing, the verdict says all.
    """
    low, high, of_what = _score_ends(data)
    if not of_what or verdict(data) in (HARDLY, UNMEASURED):
        return verdict(data)
    least_wrong, most_wrong = (round(100 * (1 - right)) for right in (high, low))
    wrong_words = f"{least_wrong}" if least_wrong == most_wrong else f"{least_wrong} to {most_wrong}"
    clauses = [f"{FIT_FOR_EXERCISES}: {LEARNERS[of_what]} {wrong_words} of 100 {of_what} wrongly"]
    help_of_records = records_help(data)
    if help_of_records.sign is not None:
        clauses.append(help_of_records.clause)
    degree = judge_likeness({measure.name: measure.value for measure in data.measures})
    if degree and not caution(data):
        clauses.append(LIKENESS_CLAUSES[degree])
    clauses.append(NOT_COMPARED)
    return f"{'; '.join(clauses)}."


def _score_ends(data: ReportData) -> tuple[float, float, str]:
    """Returns the ends of the headline score's interval, and what it is a share of; "" if none was measured."""
    own_accuracy, score = data.own_accuracy, data.score
    if not data.named_labels or (score is not None and not score.is_share):
        return 0.0, 0.0, ""
    if own_accuracy is not None:
        accuracy_interval = own_accuracy.by_texts
        low, high = (
            (own_accuracy.accuracy, own_accuracy.accuracy)
            if accuracy_interval is None
            else (accuracy_interval.low, accuracy_interval.high)
        )
        return low, high, TEST_TEXTS
    return (score.low, score.high, OWN_RECORDS) if score is not None else (0.0, 0.0, "")
