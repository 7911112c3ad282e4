"""Evaluates synthetic texts by real texts that the caller holds: usefulness, closeness, overlap, membership."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from undersong_common.arrays import Float32, Float64
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import CONFIDENCE_LEVEL, Interval, auc_interval, clopper_pearson, over_seeds
from undersong_common.models.embedding import Embed
from undersong_common.models.fine_tuning import FineTuning
from undersong_common.models.model_files import model_folder
from undersong_common.printable import counted, finite, first_named
from undersong_common.program.library_threads import one_library_thread
from undersong_common.text import overlap
from undersong_common.text.overlap import ClosestRecords, Overlap, closest_records, find_overlap
from undersong_common.text.personal_data import Find, PersonalData, count_personal_data, presidio
from undersong_common.text.table import Table, count_shared, fold_texts, read_table
from undersong_protocol.statistics.terms import Terms, words
from undersong_server import learning
from undersong_server.defaults import Head
from undersong_server.evaluation import metrics, panel
from undersong_server.evaluation.metrics import (
    FEWEST_TEXTS,
    LabelErrors,
    corpus_label_errors,
    mauve,
    neighbourhoods,
    next_word_loss,
)
from undersong_server.evaluation.options import EvaluationOptions, Source
from undersong_server.methods.parts.keyphrases import sequence_text

SEQUENCES = "keyphrase sequences alone"
NO_PRIVACY = "private data only, no privacy"
OWN_SEQUENCES = "the private texts' own sequences, no privacy"
NOT_PRIVATE = (
    "These figures are not private: they were computed in the clear from the files named here and are covered by no "
    "(epsilon, delta). Treat them as you treat those files; choosing between runs by them spends privacy that no "
    "ledger counts."
)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Figures that compare synthetic texts with the real texts of one reference file, or measure each side by itself.

    Figures of embeddings are of ``rows`` texts of each side, drawn with the seed; lengths, labels, self-similarity and
    next-word losses are of all texts.

    Divergences are Jensen-Shannon, in bits. ``label`` is None if a side has no labels; figures that need more texts
    than there are become NaN. The figures of diversity are of equally many texts on both sides: all of them depend on
    that number. Next-word losses are bits per word of the reference: with general word frequencies alone, and
    after a small model has read the synthetic texts.
    """

    reference: str
    rows: int
    frechet: float = math.nan
    precision: float = math.nan
    recall: float = math.nan
    density: float = math.nan
    coverage: float = math.nan
    mauve: float = math.nan
    self_similarity: float
    reference_self_similarity: float
    distinct_bigrams: float
    reference_distinct_bigrams: float
    vendi: float
    reference_vendi: float
    next_word_before: float
    next_word_after: float
    length: float
    label: float | None = None


@dataclass(frozen=True, eq=False)
class EvaluationReport:
    """Figures of one evaluation. ``notes`` are sentences for the reader.

    ``membership`` holds the attacks on the synthetic texts' model and, for comparison, on the private data's own.
    ``label_errors`` says which synthetic texts probably have a wrong label, None without labels, and
    ``label_error_shares`` the share of such texts by the models of each seed. ``closest`` compares with private
    training texts and a hold-out, None if one is missing.
    """

    run: str
    synthetic_rows: int
    trained: tuple[panel.TrainedModels, ...]
    distances: tuple[Distances, ...]
    overlap: Overlap | None
    overlap_base_rate: Overlap | None
    notes: tuple[str, ...]
    membership: "tuple[Membership, ...]" = ()
    label_errors: LabelErrors | None = None
    label_error_shares: tuple[float, ...] = ()
    closest: ClosestRecords | None = None
    personal: PersonalData | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values; NaN becomes None."""
        label_errors = None
        if self.label_errors is not None:
            label_errors = self.label_errors.to_json()
            if len(self.label_error_shares) > 1:
                label_errors["share_over_seeds"] = asdict(over_seeds(self.label_error_shares))
        report_json = {
            "run": self.run,
            "private": False,
            "notice": NOT_PRIVATE,
            "synthetic_rows": self.synthetic_rows,
            "task_models": [trained.to_json() for trained in self.trained],
            "panel": panel.settings(),
            "distances": [asdict(distances) for distances in self.distances],
            "overlap": _overlap_json(self.overlap),
            "overlap_of_test_file": _overlap_json(self.overlap_base_rate),
            "membership": [asdict(membership) for membership in self.membership],
            "label_errors": label_errors,
            "closest_records": _fields_json(self.closest),
            "personal_data": _fields_json(self.personal),
            "notes": list(self.notes),
        }
        finite_json: dict[str, Any] = finite(report_json)
        return finite_json


def evaluate_tables(
    run: str,
    synthetic: Table,
    options: EvaluationOptions,
    *,
    embed: Embed,
    sequences: Table | None = None,
    groups: Sequence[str] | None = None,
    only_task_models: bool = False,
) -> EvaluationReport:
    """Evaluates synthetic texts against the real texts that ``options`` names.

    Args:
        run: name of the run in the report.
        embed: texts to float32 unit vectors [n, d].
        sequences: the keyphrase sequences of the run, judged alone as well.
        groups: the group of each test text; task models are judged by group too.
        only_task_models: leaves out distances and label errors, which take most of the time.

    Raises ConfigurationError if a file or table is not usable.
    """
    labelled_files = {options.test, options.train_private, *(options.membership or ())}

    @cache  # one file may be named for several purposes
    def read(source: Source | None) -> Table | None:
        if source is None or isinstance(source, Table):
            return source
        label_field = None
        if source in labelled_files:
            label_field = options.label_field or None
        return read_table(source, options.text_field, label_field)

    def embedded(name: str, table: Table) -> _Texts:
        return _Texts(name, table, embed(table.texts))

    overlap_table, target_table = read(options.overlap), read(options.adapt_to)
    member_tables = [embedded("", table) for table in map(read, options.membership or ()) if table is not None]
    test_table, private_table = read(options.test), read(options.train_private)
    test_texts = private_texts = None
    if test_table is not None:
        test_texts = embedded("test file", test_table)
    if private_table is not None:
        private_texts = embedded(NO_PRIVACY, private_table)
    head_kind, seed = options.head, options.seed
    fine_tuning = None
    if options.bert is not None:
        fine_tuning = FineTuning(
            model_folder(options.bert),
            epochs=options.epochs,
            batch=options.batch,
            learning_rate=options.learning_rate,
            max_tokens=options.max_tokens,
        )
    data_finder = None
    if options.personal_data:
        data_finder = presidio()
    note_lines: list[str] = []
    seeds = range(seed, seed + max(1, options.repeats))
    corpus = _Texts("synthetic", synthetic, np.zeros((0, 0), dtype=np.float32))
    if test_texts is not None or private_texts is not None or member_tables:  # an overlap alone needs no embeddings
        corpus = corpus._replace(x=embed(synthetic.texts))
    trainings: list[tuple[_Texts, Train, _Texts]] = []
    if test_texts is None:
        note_lines.append("No test file was named: no task model was trained.")
    elif test_texts.table.labels is None:
        note_lines.append("The test file was read without labels: no task model was trained.")
    else:
        models: list[Train] = [_train_panel]
        if head_kind is not None:
            models.append(partial(_train_head, head=head_kind))
        models_of_texts = [*models]
        if fine_tuning is not None:
            models_of_texts.append(partial(_fine_tuned, settings=fine_tuning))
        for texts in filter(None, (corpus, private_texts)):
            if len(set(texts.labels)) < 2:
                note_lines.append(
                    f"The {texts.name} texts have fewer than two labels: no task model was trained on them."
                )
            else:
                trainings += [(texts, train, test_texts) for train in models_of_texts]
        if target_table is not None:
            adapted_corpus = corpus._replace(name=f"synthetic, adapted to {len(target_table)} unlabelled texts")
            trainings.append(
                (adapted_corpus, partial(_train_adapted, target=embed(target_table.texts), head=head_kind), test_texts)
            )
        if sequences is not None:  # DP-KPS B.2.2: the test records are turned into sequences as well
            sequence_sets = [embedded(SEQUENCES, sequences)]
            if private_texts is not None:
                sequence_sets.append(embedded(OWN_SEQUENCES, sequences_of(private_texts.table, sequences)))
            tested_sequences = embedded(test_texts.name, sequences_of(test_texts.table, sequences, keep_empty=True))
            trainings += [(texts, train, tested_sequences) for texts in sequence_sets for train in models]
        note_lines.extend(_unknown_labels(synthetic, test_texts.table))
    if test_texts is not None:
        note_lines.extend(_shared_texts_warnings(synthetic, test_texts.table))
    attacked_corpora = [corpus]
    if private_texts is not None and private_texts.table.labels is not None:
        attacked_corpora.append(private_texts)
    reference_texts = []
    if test_texts is not None:
        reference_texts.append(test_texts)
    if private_texts is not None:
        reference_texts.append(private_texts._replace(name="private training file"))
    import sklearn.cluster  # noqa: F401 - one_library_thread limits only libraries that are loaded

    with one_library_thread():  # one thread adds in the same order on every machine
        label_errors_by_seed = []
        if not only_task_models and len(corpus.x) and len(set(corpus.labels)) > 1:
            label_errors_by_seed = [
                corpus_label_errors(corpus.x, corpus.labels, seed=label_seed) for label_seed in seeds
            ]
        synthetic_overlap, test_overlap = _compute_overlaps(synthetic, test_texts, overlap_table)
        return EvaluationReport(
            run=run,
            synthetic_rows=len(synthetic),
            trained=tuple(
                panel.score_models(
                    texts.name,
                    len(texts.table),
                    [train(texts, tested_texts, model_seed) for model_seed in seeds],
                    tested_texts.labels,
                    groups,
                )
                for texts, train, tested_texts in trainings
            ),
            distances=tuple(
                _compute_distances(corpus, reference, seed) for reference in reference_texts if not only_task_models
            ),
            overlap=synthetic_overlap,
            overlap_base_rate=test_overlap,
            notes=tuple(note_lines),
            membership=tuple(
                attacks_over_trainings(
                    [
                        _attack_model(texts, member_tables[0], member_tables[1], head_kind or "auto", model_seed)
                        for model_seed in seeds
                    ]
                )
                for texts in attacked_corpora
                if member_tables
            ),
            label_errors=next(iter(label_errors_by_seed), None),
            label_error_shares=tuple(label_errors.share for label_errors in label_errors_by_seed),
            closest=_compare_closest(corpus, private_texts, test_texts, seed),
            personal=_count_personal(synthetic, overlap_table, data_finder),
        )


class _Texts(NamedTuple):
    """Texts with the name that the report gives them, and their embeddings, float32 [n, d]."""

    name: str
    table: Table
    x: Float32

    @property
    def labels(self) -> Sequence[str]:
        return self.table.labels or ()


def _overlap_json(overlap_figures: Overlap | None) -> dict[str, Any] | None:
    if overlap_figures is None:
        return None
    return overlap_figures.as_dict()


def _fields_json(figures: ClosestRecords | PersonalData | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    return asdict(figures)


def _compute_overlaps(
    synthetic: Table, test: _Texts | None, compared: Table | None
) -> tuple[Overlap | None, Overlap | None]:
    """Returns the overlap of the synthetic texts with the compared file, and of the test texts with it."""
    if compared is None:
        return None, None
    synthetic_overlap = find_overlap(synthetic.texts, compared.texts)
    if test is None:
        return synthetic_overlap, None
    return synthetic_overlap, find_overlap(test.table.texts, compared.texts)


def _compare_closest(
    corpus: _Texts, private: _Texts | None, held_out: _Texts | None, seed: int
) -> ClosestRecords | None:
    if held_out is None or private is None or not len(corpus.x):
        return None
    return closest_records(corpus.x, private.x, held_out.x, seed=seed)


def _count_personal(
    synthetic: Table, compared: Table | None, data_finder: tuple[Find, str] | None
) -> PersonalData | None:
    if data_finder is None:
        return None
    if compared is None:
        return count_personal_data(synthetic.texts, None, *data_finder)
    return count_personal_data(synthetic.texts, compared.texts, *data_finder)


Train: TypeAlias = Callable[..., tuple[str, panel.Predicted]]
"""Trains on a corpus and predicts a test set, with a seed; returns the model's name and the labels."""


def _train_panel(corpus: _Texts, test: _Texts, seed: int) -> tuple[str, panel.Predicted]:
    labelled_corpus = panel.Labelled(corpus.table.texts, corpus.labels, corpus.x)
    return "panel", {
        model: panel.predict(model, labelled_corpus, test.table.texts, test.x, seed) for model in panel.MODELS
    }


def _train_head(corpus: _Texts, test: _Texts, seed: int, head: Head) -> tuple[str, panel.Predicted]:
    model = learning.train(corpus.x, corpus.labels, head=head, seed=seed)
    return model.description, {model.description: learning.predict(model, test.x)}


def _train_adapted(
    corpus: _Texts, test: _Texts, seed: int, target: Float32, head: Head | None
) -> tuple[str, panel.Predicted]:
    if not corpus.labels:
        raise ConfigurationError(
            "the synthetic texts have no labels, so no task model can be adapted",
            "leave out --adapt",
            code="labels-missing",
        )
    model = learning.adapt(corpus.x, tuple(corpus.labels), target, seed=seed, head=head)
    return model.description, {model.description: learning.predict(model, test.x)}


def _fine_tuned(corpus: _Texts, test: _Texts, seed: int, settings: FineTuning) -> tuple[str, panel.Predicted]:
    model = learning.fine_tune(corpus.table.texts, corpus.labels, settings, seed=seed)
    return model.description, {model.description: learning.predict(model, test.table.texts)}


def _attack_model(corpus: _Texts, members: _Texts, nonmembers: _Texts, head: Head, seed: int) -> "Membership":
    if not corpus.labels:
        raise ConfigurationError(
            f"the {corpus.name} texts have no labels: there is no task model to attack",
            "leave --membership out, or name texts with labels",
            code="labels-missing",
        )
    task_model = learning.train(corpus.x, corpus.labels, head=head, seed=seed)
    return membership(corpus.name, task_model, (members.table, members.x), (nonmembers.table, nonmembers.x), seed=seed)


def _unknown_labels(synthetic: Table, test: Table) -> list[str]:
    missing_labels = sorted(set(test.labels or ()) - set(synthetic.labels or ()))
    if not missing_labels or synthetic.labels is None:
        return []
    return [f"No synthetic text has the label {first_named(missing_labels, 8)}: test texts of it all count as errors."]


def _shared_texts_warnings(synthetic: Table, test: Table) -> list[str]:
    """Returns a warning if the test file holds texts of the corpus; an empty list if it holds none."""
    test_texts = fold_texts(test.texts)
    shared_count = count_shared(test_texts, fold_texts(synthetic.texts))
    if not shared_count:
        return []
    return [
        f"Warning: {shared_count:,} of the {counted(len(test_texts), 'different test text')} are texts of the corpus"
        " itself, so that the figures flatter it. Evaluate on real texts that are public."
    ]


def _compute_distances(corpus: _Texts, reference: _Texts, seed: int) -> Distances:
    synthetic_table, reference_table = corpus.table, reference.table
    corpus_row_numbers, reference_row_numbers = overlap.equal_choice(len(corpus.x), len(reference.x), seed=seed)
    synthetic_x, reference_x = corpus.x[corpus_row_numbers], reference.x[reference_row_numbers]
    row_count = len(synthetic_x)
    if row_count <= 5:
        neighbour_figures = {}
    else:
        neighbour_figures = neighbourhoods(synthetic_x, reference_x)
    # Covariances need two rows, and mauve's clusters FEWEST_TEXTS.
    frechet = mauve_score = math.nan
    if row_count > 1:
        frechet = metrics.frechet_distance(synthetic_x, reference_x)
    if row_count >= FEWEST_TEXTS:
        mauve_score = mauve(synthetic_x, reference_x, seed=seed)
    label_divergence = None
    if synthetic_table.labels is not None and reference_table.labels is not None:
        label_divergence = metrics.label_divergence(corpus.labels, reference.labels)
    return Distances(
        reference=reference.name,
        rows=row_count,
        frechet=frechet,
        mauve=mauve_score,
        self_similarity=metrics.self_similarity(corpus.x),
        reference_self_similarity=metrics.self_similarity(reference.x),
        distinct_bigrams=metrics.distinct_n(
            [synthetic_table.texts[row_number] for row_number in corpus_row_numbers], 2
        ),
        reference_distinct_bigrams=metrics.distinct_n(
            [reference_table.texts[row_number] for row_number in reference_row_numbers], 2
        ),
        vendi=metrics.vendi_score(synthetic_x),
        reference_vendi=metrics.vendi_score(reference_x),
        next_word_before=next_word_loss((), reference_table.texts),
        next_word_after=next_word_loss(synthetic_table.texts, reference_table.texts),
        length=metrics.length_divergence(synthetic_table.texts, reference_table.texts),
        label=label_divergence,
        **neighbour_figures,
    )


def read_sequences(path: Path) -> Table:
    """Reads a run's sequences: one text per sequence, its terms with commas between them, and its label.

    Raises ConfigurationError if the run wrote none.
    """
    if not path.is_file():
        raise ConfigurationError(
            f"{path.parent}: holds no {path.name}",
            "leave the sequences out, or evaluate a run of a method that writes from keyphrases (dpkps)",
            code="sequences-missing",
        )
    json_rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Table(
        tuple(sequence_text(row["terms"]) for row in json_rows), tuple(row["label"] for row in json_rows), None
    )


def sequences_of(table: Table, sequences: Table, *, keep_empty: bool = False) -> Table:
    """Returns, for each text, the terms that occur in it, in order and joined by ", ", with the text's label.

    Terms are those of ``sequences``. No sequence is longer than the longest of ``sequences``. Texts without any of the
    terms are left out, or (``keep_empty``) have an empty one.
    """
    term_lists = [text.split(", ") for text in sequences.texts]
    term_of_words: dict[str, str] = {}
    for sequence in term_lists:
        for term in sequence:
            term_of_words.setdefault(" ".join(words(term)), term)
    known_terms = list(term_of_words.values())
    term_matcher, longest_sequence = Terms(known_terms), max(map(len, term_lists))
    terms_by_row = [term_matcher.of(text, longest_sequence) for text in table.texts]
    row_numbers = [row_number for row_number, terms_found in enumerate(terms_by_row) if terms_found or keep_empty]
    return Table(
        tuple(sequence_text([known_terms[term] for term in terms_by_row[row_number]]) for row_number in row_numbers),
        table.take(row_numbers).labels,
        None,
    )


# Membership inference against the task model: entropy and confidence attacks, with their intervals.
#
# Source: Sun et al. 2025 (DPGA-TextSyn), appendix F; the attacks are those of Salem et al. 2019 and Yeom et al. 2018.
# The attacker sees the small task model that was trained on synthetic texts, and guesses of real records whether they
# were private training data (members) or not. A model that leaks nothing gives every attack one half.
FALSE_POSITIVES = 0.01  # the rate at which true positives are reported (Carlini et al. 2022)
FEWEST_RECORDS = 4  # records of each kind: half set the threshold, half are judged


@dataclass(frozen=True)
class Attack:
    """Success of one membership inference attack on a task model.

    Attributes:
        name: the score that it thresholds, in words.
        auc: chance that a member scores higher than a non-member (DeLong's interval); 0.5 is guessing.
        accuracy: balanced accuracy on one half of the records at the threshold that is best on the other half; its
            interval joins two Clopper-Pearson ones. 0.5 is guessing.
        true_positives: true positive rate at a false positive rate of 1 % on the other half; 0.01 is guessing.
        found, judged_members: numbers of members that the threshold calls members, and of members that were judged.
        false_alarms, judged_others: the same two numbers of non-members.
        auc_over_seeds: mean AUC over several trainings with its interval; None for a single training.
    """

    name: str
    auc: Interval
    accuracy: Interval
    true_positives: Interval
    found: int
    judged_members: int
    false_alarms: int
    judged_others: int
    auc_over_seeds: Interval | None = None


@dataclass(frozen=True)
class Membership:
    """All attacks on one task model. ``members`` and ``nonmembers`` count the records."""

    data: str
    members: int
    nonmembers: int
    attacks: tuple[Attack, ...]


Records = tuple[Table, Any]
"""Records, and the inputs of the attacked model for them: embeddings, or the texts themselves."""


def membership(data: str, model: Any, members: Records, nonmembers: Records, *, seed: int = 0) -> Membership:
    """Measures how well attacks tell the records that ``model`` was trained on from others.

    Args:
        data: a description of the model's training texts, for the report.
        model: has ``probabilities``, which gives the probability of each label for each record.

    Raises ConfigurationError for fewer than four members or non-members.
    """
    sides = (members, nonmembers)
    for side_name, (table, _) in zip(("members", "non-members"), sides, strict=True):
        if len(table) < FEWEST_RECORDS:
            raise ConfigurationError(
                f"--membership: {len(table)} {side_name} are too few to attack a task model with",
                f"give at least {FEWEST_RECORDS} members and as many non-members",
                code="too-few-records",
            )
    probabilities = [model.probabilities(inputs) for _, inputs in sides]
    attacks = [
        _judge_attack("entropy", [-entropy(side) for side in probabilities], seed),
        _judge_attack("confidence", [side.max(axis=1) for side in probabilities], seed),
    ]
    if all(table.labels is not None for table, _ in sides):
        label_confidences = [
            of_label(side, model.labels, table.labels or ())
            for side, (table, _) in zip(probabilities, sides, strict=True)
        ]
        attacks.append(_judge_attack("confidence in the true label", label_confidences, seed))
    return Membership(data, len(members[0]), len(nonmembers[0]), tuple(attacks))


def attacks_over_trainings(memberships: Sequence[Membership]) -> Membership:
    """Returns the figures of the first training, with each attack's mean AUC over all trainings (``auc_over_seeds``).

    A single training is returned as it is.
    """
    if len(memberships) == 1:
        return memberships[0]
    attacks = [
        replace(
            attack, auc_over_seeds=over_seeds([training.attacks[attack_number].auc.value for training in memberships])
        )
        for attack_number, attack in enumerate(memberships[0].attacks)
    ]
    return replace(memberships[0], attacks=tuple(attacks))


def _judge_attack(name: str, scores: Sequence[Float64], seed: int) -> Attack:
    """Judges ``scores`` of members and of others; no threshold is judged on the records that chose it."""
    rng = np.random.default_rng([seed, 0x3E3B])
    members, nonmembers = (rng.permutation(side) for side in scores)
    member_split, nonmember_split = len(members) // 2, len(nonmembers) // 2
    threshold = _best_threshold(members[:member_split], nonmembers[:nonmember_split])
    member_hits, nonmember_hits = (
        int((members[member_split:] >= threshold).sum()),
        int((nonmembers[nonmember_split:] >= threshold).sum()),
    )
    # Two intervals of 97.5 % hold together with 95 %.
    joint_level = 1.0 - (1.0 - CONFIDENCE_LEVEL) / 2
    true_positive_rate = clopper_pearson(member_hits, len(members) - member_split, joint_level)
    false_positive_rate = clopper_pearson(nonmember_hits, len(nonmembers) - nonmember_split, joint_level)
    attack_accuracy = Interval(
        (true_positive_rate.value + 1 - false_positive_rate.value) / 2,
        (true_positive_rate.low + 1 - false_positive_rate.high) / 2,
        (true_positive_rate.high + 1 - false_positive_rate.low) / 2,
    )
    rare_threshold = float(np.quantile(nonmembers[:nonmember_split], 1.0 - FALSE_POSITIVES, method="higher"))
    rare_rate = clopper_pearson(int((members[member_split:] > rare_threshold).sum()), len(members) - member_split)
    return Attack(
        name,
        auc_interval(members, nonmembers),
        attack_accuracy,
        rare_rate,
        found=member_hits,
        judged_members=len(members) - member_split,
        false_alarms=nonmember_hits,
        judged_others=len(nonmembers) - nonmember_split,
    )


def _best_threshold(members: Float64, nonmembers: Float64) -> float:
    """Returns the threshold on scores whose guesses have the best balanced accuracy."""
    possible_thresholds = np.unique(np.concatenate([members, nonmembers]))
    true_positive_rates = 1.0 - np.searchsorted(np.sort(members), possible_thresholds) / len(members)
    false_positive_rates = 1.0 - np.searchsorted(np.sort(nonmembers), possible_thresholds) / len(nonmembers)
    return float(possible_thresholds[int(np.argmax(true_positive_rates - false_positive_rates))])


def entropy(probabilities: Float64) -> Float64:
    """Entropy of each row of probabilities [n, L], in nats, float64 [n]."""
    entropies: Float64 = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=1)
    return entropies


def of_label(probabilities: Float64, columns: tuple[str, ...], labels: tuple[str, ...]) -> Float64:
    """Probability of each record's own label; 0 if the model never saw that label."""
    column_of_label = {label: column_number for column_number, label in enumerate(columns)}
    return np.array(
        [
            row[column_of_label[label]] if label in column_of_label else 0.0
            for row, label in zip(probabilities, labels, strict=True)
        ]
    )
