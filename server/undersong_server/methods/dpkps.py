"""DP-KPS (Nagesh, Chen, Mishra, Wagner): prompts seeded with private keyphrases; one prompt per text.

The comments in ``run`` name the steps of the paper's Figure 3. Deviations: a record counts once in each release, as one
vector, however many phrases it has; features are cosines and sines in pairs; a record with fewer than L phrases is
filled up with a vector orthogonal to all of them, so that prefix densities stay unbiased (statistics/terms.py). By
default noise is Gaussian, of the N highest terms those that noise alone would put there are left out, a sequence has no
term twice, densities are sharpened before they are drawn from, and structures have unequal weights; ``preset =
"paper"`` does these as the paper does. Two private sums are made in all, or three where validation on public texts
chooses the sampler; what follows is post-processing.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted, joined
from undersong_common.text.table import Table, read_table
from undersong_protocol.statistics.terms import FourierFeatures, matcher
from undersong_server import learning
from undersong_server.methods.interface import Method, Order, PublicTexts, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.keyphrases import (
    UNFILLED,
    Densities,
    VocabularyOptions,
    private_keyphrases,
    sequence_text,
)
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.shares import check_named

Share = Annotated[float, Field(gt=0)]
Sequences = list[tuple[str, tuple[str, ...]]]  # a label and the terms that are drawn for it

STRENGTH = 3.0  # inverse regularisation of the classifier that chooses a sampler


class Options(VocabularyOptions):
    """Options of DP-KPS: its [method] keys, besides those of the vocabulary.

    Attributes:
        samples: texts to write, with one prompt each.
        per_class: texts of each class, in place of ``samples``.
        label_shares: of the corpus: "even", or a table with a number for each label.
        length: L, terms of a sequence.
        pairs: m pairs of random Fourier features.
        split: of the budget (mu squared; epsilon with Laplace noise), between vocabulary and densities.
        sampler: how a sequence is drawn; validation chose the default on both data sets of docs/dpkps.md. "validated"
            asks for the densities of both, draws by both, and takes the one whose sequences label those of the public
            texts of ``validation`` better (B.2.4).
        validation: public file of texts with labels, apart from the test file, for the sampler "validated".
        ensemble: lengths of the density structures of the iterative sampler.
        noise: "laplace" is pure epsilon.
        width: u times a structure's length in the kernel exp(-u |x - y|^2). "paper" goes by structure (A.2): 1 for
            single phrases and in a linear ensemble, 2 in a logarithmic one.
        sharpness: power of the density by which terms are drawn. 1 is in proportion to it, with either sampler; of the
            iterative sampler any other power is multiplied by the structure's length. In proportion classes are hardly
            told apart, because the paper's kernel is wide beside the distances of words.
        highest: each term is drawn among so many of the highest density, "a high scoring" one; none: among all.
        ends: whether an iterative sequence ends where most records that begin so do, with ``length`` terms at most.
        repeats: whether a sequence may have a term twice.
        even: whether the logarithmic structures are A.2's: equal budgets, and none of a single phrase.
        class_in_prompt: whether the model is told the class.
        examples: public texts that show the style.
        shots: public file of texts with labels; ``shots_per_class`` of each class are shown, with their keyphrases, in
            place of ``examples``. A prompt that names the class shows that class's; another one ``shots_shown`` of all
            classes, so that they do not tell it. "" shows none.
        words: wanted length of a text.
    """

    method: ClassVar[str] = "dpkps"

    samples: Annotated[int, Field(ge=1)] = 2000
    per_class: Annotated[int, Field(ge=1)] | None = None
    label_shares: PublicShares = "even"
    length: Annotated[int, Field(ge=1, le=64)] = 10
    pairs: Annotated[int, Field(ge=1)] = 512
    split: tuple[Share, Share] = (1.0, 5.0)
    sampler: Literal["independent", "iterative", "validated"] = "independent"
    validation: str = ""
    ensemble: Literal["logarithmic", "linear"] = "logarithmic"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    width: Annotated[float, Field(gt=0, lt=1000)] | Literal["paper"] = 2.0
    sharpness: Annotated[float, Field(gt=0, le=64)] = 4.0
    highest: Annotated[int, Field(ge=1)] | None = None
    ends: bool = False
    repeats: bool = False
    even: bool = False
    class_in_prompt: bool = False
    examples: tuple[str, ...] = ()
    shots: str = ""
    shots_per_class: Annotated[int, Field(ge=1, le=20)] = 3
    shots_shown: Annotated[int, Field(ge=1, le=100)] = 6
    words: Annotated[int, Field(ge=1)] | None = None

    def lengths(self) -> tuple[int, ...]:
        """Lengths of the density structures: 1 to L, or powers of two up to the first that holds L phrases."""
        if self.sampler == "independent":
            return (1,)
        if self.ensemble == "linear":
            return tuple(range(1, self.length + 1))
        highest_power = math.ceil(math.log2(self.length))
        return tuple(2**power for power in range(min(self.even, highest_power), highest_power + 1))

    def alternatives(self) -> "tuple[Options, ...]":
        """The options with each sampler that may be taken: one, or both where validation decides."""
        if self.sampler != "validated":
            return (self,)
        return tuple(self.model_copy(update={"sampler": sampler}) for sampler in ("independent", "iterative"))

    def texts(self, setting: Setting) -> int:
        """Number of texts to write: ``samples``, or ``per_class`` times the number of classes."""
        if self.per_class is None:
            return self.samples
        return self.per_class * max(1, len(setting.labels))

    def features(self, setting: Setting) -> FourierFeatures:
        if self.sampler != "independent" and self.ensemble == "logarithmic":
            paper_width = 2.0
        else:
            paper_width = 1.0
        return FourierFeatures(
            pairs=self.pairs,
            classes=len(setting.labels),
            lengths=self.lengths(),
            phrases=self.length,
            averaged=self.sampler == "independent",
            width=paper_width if self.width == "paper" else self.width,
            even=self.even,
        )


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the vocabulary histogram and the density features. The split divides mu squared, or (Laplace) epsilon."""
    check_named(options.label_shares, setting.labels)
    _example_shots(options, setting, np.random.default_rng(0))  # raises now if the file method.shots cannot be used
    sampler_options = options.alternatives()
    if len(sampler_options) > 1:
        _validation_texts(options, setting)
    density_share = options.split[1] / len(sampler_options)
    return [
        SumRequest("vocabulary", options.histogram(setting), options.split[0], law=options.noise),
        *(
            SumRequest(
                _density_name(options, sampler_option),
                sampler_option.features(setting),
                density_share,
                law=options.noise,
            )
            for sampler_option in sampler_options
        ),
    ]


def _density_name(options: Options, alternative: Options) -> str:
    return "densities" if options is alternative else f"densities/{alternative.sampler}"


def notes(options: Options, setting: Setting) -> list[str]:
    """Returns sentences for ``undersong plan``: the split of the budget."""
    total_share = sum(options.split)
    vocabulary_percent, density_percent = (f"{100 * share / total_share:.3g} %" for share in options.split)
    shared_quantity = "mu squared" if options.noise == "gaussian" else "epsilon"
    if len(options.alternatives()) > 1:
        sampler_note = ", half of it for each sampler"
    else:
        sampler_note = ""
    return [
        f"Budget ({shared_quantity}): {vocabulary_percent} vocabulary, {density_percent} densities of sequences of"
        f" {options.length} keyphrases{sampler_note}."
    ]


def warnings(options: Options, setting: Setting, public_texts: PublicTexts) -> list[str]:
    """Returns a warning where a sequence is longer than the terms of a public text: of the shots, examples or tests."""
    shot_texts = [
        text for texts in _example_shots(options, setting, np.random.default_rng(0)).values() for text, _ in texts
    ]
    texts = shot_texts or options.examples or public_texts()
    if not texts:
        return []
    term_matcher = matcher(options.terms(setting))
    median_term_count = statistics.median(len(term_matcher.of(text)) for text in texts)
    if options.length <= median_term_count:
        return []
    filler_effect = "further places of a sequence are filler"
    if options.ends and options.sampler != "independent":
        filler_effect = "a sequence ends there only where noise does not hide that the records do"
    return [
        f"method.length is {options.length}, and half of the public texts have at most {median_term_count:g} terms of"
        f" the vocabulary: {filler_effect}, so set a length that most texts have"
    ]


def generator_calls(options: Options, setting: Setting) -> int:
    return options.texts(setting)


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs DP-KPS. Returns the synthetic corpus."""
    shots_by_label = _example_shots(options, run.setting, run.rng("shots"))
    # Step 1: the private vocabulary (A.1)
    keyphrases = private_keyphrases(options, run, law=options.noise)
    # Steps 2 and 3: its embeddings, and the densities of each class (A.2)
    vectors_input, vectors = run.publish_embeddings("terms", keyphrases)
    sequences_by_sampler: dict[str, Sequences] = {}
    for alternative in options.alternatives():
        density_name = _density_name(options, alternative)
        density_sums = run.private_sum(density_name, [run.publish_texts("terms", keyphrases), vectors_input])
        densities = Densities(alternative.features(run.setting), density_sums.natural, vectors, repeats=options.repeats)
        # Step 4: sequences
        sequences_by_sampler[alternative.sampler] = _draw_sequences(alternative, run, densities, keyphrases)
    if len(sequences_by_sampler) > 1:
        sequences = _validated(options, run, sequences_by_sampler, keyphrases)
    else:
        sequences = sequences_by_sampler[options.sampler]
    run.record("sequences", 0, sequences)

    # Step 5: prompts
    generators, text_orders = run.setting.generators, []
    all_shots = [shot for label_shots in shots_by_label.values() for shot in label_shots]
    rng = run.rng("shots of a prompt")
    for sequence_index, (label, terms) in enumerate(sequences):
        shots_of_label = shots_by_label.get(label, [])
        if all_shots and not options.class_in_prompt:
            shots_of_label = [all_shots[i] for i in rng.permutation(len(all_shots))[: options.shots_shown]]
        text_orders.append(
            Order(
                generators[sequence_index % len(generators)],
                "keyphrases",
                label,
                good=tuple(text for text, _ in shots_of_label) if shots_of_label else options.examples,
                good_terms=tuple(shot_terms for _, shot_terms in shots_of_label),
                terms=terms,
                words=options.words,
                named=options.class_in_prompt,
            )
        )
    run.generate("keyphrases", 0, text_orders)
    return run.pool.samples


def _draw_sequences(options: Options, run: RunContext, densities: Densities, terms: Sequence[str]) -> Sequences:
    """Draws the sequences of all labels by one sampler; ``terms`` are the terms of its densities."""
    if options.sampler == "independent":
        draw_terms = densities.independent
    else:
        draw_terms = partial(densities.iterative, ends=options.ends)
    task_labels = run.setting.labels or ("",)
    shares = public_shares(options.label_shares, run.setting.labels)
    label_of = deal_labels(options.texts(run.setting), shares, np.zeros(len(task_labels), dtype=np.int64))
    if options.repeats:
        length = options.length
    else:
        length = min(options.length, len(terms))
    sequences: Sequences = []
    for label, sequence_count in enumerate(np.bincount(label_of, minlength=len(task_labels))):
        rng = run.rng(f"sequences/{label}")
        drawn_rows = draw_terms(
            label, int(sequence_count), length, rng, sharpness=options.sharpness, highest=options.highest
        )
        sequences += [
            (task_labels[label], tuple(terms[term_number] for term_number in term_row if term_number != UNFILLED))
            for term_row in drawn_rows
        ]
    return sequences


def _validation_texts(options: Options, setting: Setting) -> Table:
    """The public texts with labels that decide on the sampler. Raises ConfigurationError where there are none."""
    if len(setting.labels) < 2 or not options.validation:
        raise ConfigurationError(
            'method.sampler "validated" needs a task with labels, and public texts that have them',
            "name their file by method.validation, or choose independent or iterative",
        )
    return read_table(setting.folder / options.validation, "text", "label", labels=setting.labels)


def _validated(
    options: Options, run: RunContext, sequences_by_sampler: Mapping[str, Sequences], terms: Sequence[str]
) -> Sequences:
    """Returns the sequences of the sampler that labels more of the public texts rightly, of equal ones the independent.

    As in B.2.4 and Table 5, a classifier is trained on sequences and asked for the labels of real texts' sequences.
    Texts without a term of the private vocabulary do not count. It reads public texts and opened sums only, so it
    costs no privacy.
    """
    public_texts, term_matcher = _validation_texts(options, run.setting), matcher(tuple(terms))
    terms_of_text = [
        tuple(terms[term_number] for term_number in term_matcher.of(text, options.length))
        for text in public_texts.texts
    ]
    real_sequences = [
        (label, text_terms)
        for label, text_terms in zip(public_texts.labels or (), terms_of_text, strict=True)
        if text_terms
    ]
    right_shares = {
        sampler: _right_share(run, sequences, real_sequences) if real_sequences else 0.0
        for sampler, sequences in sequences_by_sampler.items()
    }
    best_sampler = max(right_shares, key=lambda sampler: right_shares[sampler])  # the first of equal ones
    run.record("sampler", 0, {"chosen": best_sampler, "texts": len(real_sequences), "right": right_shares})
    share_words = joined([f"{100 * share:.0f} % by {sampler} sequences" for sampler, share in right_shares.items()])
    run.record(
        "remarks",
        0,
        f"Sequences are {best_sampler}: of {counted(len(real_sequences), 'public text')} with a term of the private"
        " vocabulary, a"
        f" program labels {share_words} rightly.",
    )
    return sequences_by_sampler[best_sampler]


def _right_share(run: RunContext, sequences: Sequences, real_sequences: Sequences) -> float:
    """Share of the ``real_sequences`` whose label a classifier finds that was trained on the drawn ``sequences``."""
    embedded_sides = []
    for side_sequences in (sequences, real_sequences):
        samples = [
            Sample(sequence_text(sequence_terms), label, "", 0, "sequence") for label, sequence_terms in side_sequences
        ]
        embedded_sides.append((run.embeddings(samples), run.label_numbers(samples)))
    (drawn_embeddings, drawn_label_of), (real_embeddings, real_label_of) = embedded_sides
    classifier_head = learning.classifier(drawn_embeddings, drawn_label_of, len(run.setting.labels), strength=STRENGTH)
    return float((learning.probabilities(classifier_head, real_embeddings).argmax(axis=1) == real_label_of).mean())


def _example_shots(
    options: Options, setting: Setting, rng: np.random.Generator
) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Public texts of each class with the terms of the vocabulary that they contain; texts without one are left out."""
    if not options.shots:
        return {}
    task_labels = setting.labels
    table = read_table(setting.folder / options.shots, "text", "label" if task_labels else None, labels=task_labels)
    vocabulary = options.terms(setting)
    term_matcher = matcher(vocabulary)
    shots_by_label: dict[str, list[tuple[str, tuple[str, ...]]]] = {label: [] for label in task_labels or ("",)}
    for row in rng.permutation(len(table)):
        text = table.texts[row]
        label_shots = shots_by_label[table.labels[row] if table.labels else ""]
        text_terms = tuple(vocabulary[term] for term in term_matcher.of(text, options.length))
        if text_terms and len(label_shots) < options.shots_per_class:
            label_shots.append((text, text_terms))
    empty_labels = [label for label, shots in shots_by_label.items() if not shots]
    if empty_labels:
        raise ConfigurationError(
            f"{setting.folder / options.shots}: no text{f' of the label {empty_labels[0]!r}' if task_labels else ''}"
            " contains a"
            " term of the vocabulary",
            "add texts, or leave method.shots out",
        )
    return shots_by_label


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
    asks_first=lambda _options, _setting: True,
    hides_labels=lambda options, _setting: not options.class_in_prompt,
    notes=notes,
    warnings=warnings,
)
