"""The small task model (STM): a classifier ("head") on frozen embeddings, chosen by validation on its training data.

The head is linear or an MLP. "three-layer" is the task model of DP-KPS (Nagesh et al.): two hidden layers and an output
layer; "auto" never chooses it.

The same model judges every kind of training data (synthetic, private, a mixture), so that differences come from the
data. Everything is a function of the arguments and the seed: no global random state is read or left changed.

:func:`train` needs scikit-learn, :func:`adapt` and :func:`fine_tune` need torch.

:func:`adapt` trains the MLP head by Deep CORAL (Sun, Saenko 2016): the hidden features of the training texts and of a
client's own texts get equal covariances. Texts written from keyphrases differ in style from the records that they stand
for; the client's texts need no labels. Deviations: the loss is divided by the target's squared covariance norm instead
of 4 d^2, so that a weight means the same for every embedder; and the weight is chosen, not given. The three-layer head
takes the loss as it is, with weight 1, as DP-KPS does (its B.1.2).

:func:`classifier` trains a linear head whose setting is given, as methods do on public texts.

:func:`fine_tune` trains a whole local encoder (BERT and its kin): slower than a head, but it reads texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float32, Float64, Floats, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.fine_tuning import FineTuning, TrainingTexts, load, logits, optimise
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.statistics.classifier_votes import NEVER
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_server.defaults import HEADS, Head

VALIDATION_SHARE = 0.2
# Inverse regularisation of the linear head, scikit-learn's C, weakest fit first. Validation chooses, because the choice
# matters: between these three, test accuracy differed by 3 points on 6 000 texts of mixed quality, and by 19 on texts
# with 40 % wrong labels. No C above 3 is tried. The held-out part shares the quirks of the synthetic texts it is taken
# from, so it favours a close fit to them, and real test texts do not: on the banking_groups mixture C = 1, 3, 10, 30
# label 87.7, 87.9, 86.6, 84.6 % of the real test set right.
STRENGTHS = (0.3, 1.0, 3.0)
HIDDEN_UNITS = 256
# Widths of each head's hidden layers. The output layer is the third layer of "three-layer".
HIDDEN_LAYERS: dict[Head, tuple[int, ...]] = {
    "auto": (HIDDEN_UNITS,),
    "mlp": (HIDDEN_UNITS,),
    "three-layer": (HIDDEN_UNITS, HIDDEN_UNITS),
}
MLP_EPOCHS = 40
MLP_PATIENCE = 4
MLP_BATCH = 128
MLP_RATE = 2e-3
# Factor of the squared weights in the loss, scikit-learn's alpha; it stands in place of dropout. On clinic notes and
# two sets of banking questions, with and without 20 % wrong labels, the accuracy with 1 is at most 1.2 points below
# that with dropout of 0.3 and up to 0.6 above it; values of 1e-4 to 0.1 lose more.
MLP_DECAY = 1.0
CORAL_DROPOUT = 0.3


@dataclass(frozen=True, eq=False)
class TaskModel:
    """A trained classifier ("head"): a linear layer, on the embeddings or on hidden layers of rectified units.

    Attributes:
        labels: names of the columns that ``probabilities`` returns.
        hidden: weight [inputs, H] and bias [H] of each hidden layer; none in a linear head.
        weight, bias: of the output layer, float64 [inputs, L] and [L].
        chosen: the setting that validation chose: regularisation, epochs or weight of the CORAL loss.
        description: kind of head and setting, for people.
    """

    labels: tuple[str, ...]
    hidden: tuple[tuple[Float64, Float64], ...]
    weight: Float64
    bias: Float64
    chosen: float
    description: str

    def features(self, embeddings: Float32) -> Float64:
        """The last hidden layer's activations, float64 [n, H], which domain adaptation aligns."""
        activations = np.asarray(embeddings)
        for weight, bias in self.hidden:
            activations = np.maximum(activations @ weight + bias, 0.0)
        return np.asarray(activations, dtype=np.float64)

    def probabilities(self, embeddings: Float32) -> Float64:
        """Probability of each label, float64 [n, L]; rows sum to 1."""
        return _row_softmax(self.features(embeddings) @ self.weight + self.bias)


def train(
    embeddings: Float32,
    labels: Sequence[str],
    *,
    head: Head = "auto",
    hidden: Sequence[int] = (),
    seed: int = 0,
) -> TaskModel:
    """Trains the head on embeddings [n, d] with one label each; validation chooses its remaining settings.

    A stratified fifth is held out; the log-loss on it chooses the linear head's regularisation, the MLP's
    number of epochs and, with ``head="auto"``, between the two; then the choice is trained on everything. Log-loss
    and not accuracy, because it still tells settings apart when the held-out part is small or its labels are noisy.

    Args:
        hidden: sizes of the hidden layers, instead of the head's own.

    Raises ConfigurationError if there are fewer than two labels, another number of labels than of embeddings, or an
    unknown head.
    """
    features32 = np.ascontiguousarray(embeddings, dtype=np.float32)
    label_names, label_numbers = _number_labels(labels, len(features32))
    if head not in HEADS:
        raise ConfigurationError(f"head = {head!r}: unknown", f"choose one of {', '.join(HEADS)}", code="unknown-head")
    with one_library_thread():
        # Labels with a single text stay in the fitting part; with nothing to hold out, the middle settings stand.
        fit_rows, held_rows = _split_rows(label_numbers, seed)
        if head in ("auto", "linear"):
            linear_loss, strength = _choose_strength(features32, label_numbers, fit_rows, held_rows)
        else:
            linear_loss, strength = np.inf, 0.0
        if head == "linear":
            return _linear_head(features32, label_numbers, label_names, strength)
        layer_widths = tuple(hidden) or HIDDEN_LAYERS[head]
        mlp_loss, epochs = _choose_epochs(
            features32, label_numbers, fit_rows, held_rows, label_names, seed, layer_widths
        )
        if head == "auto" and linear_loss <= mlp_loss:
            return _linear_head(features32, label_numbers, label_names, strength)
        return next(islice(_train_epochs(features32, label_numbers, label_names, seed, layer_widths), epochs - 1, None))


def predict(model: "TaskModel | FineTunedModel", inputs: Any) -> list[str]:
    """Returns the most probable label of each embedding [n, d], or of each text if the model is a fine-tuned one."""
    return [model.labels[label_number] for label_number in np.argmax(model.probabilities(inputs), axis=1)]


def _number_labels(labels: Sequence[str], row_count: int) -> tuple[tuple[str, ...], Int64]:
    if len(labels) != row_count:
        raise ConfigurationError(
            f"the training data have {row_count} texts but {len(labels)} labels",
            "give one label per text",
            code="labels-do-not-fit",
        )
    label_names, label_numbers = np.unique(np.asarray(labels, dtype=object).astype(str), return_inverse=True)
    if len(label_names) < 2:
        raise ConfigurationError(
            f"the training data have {len(label_names)} label(s); a task model needs two",
            "check the label column",
            code="too-few-labels",
        )
    return tuple(str(name) for name in label_names), label_numbers.astype(np.int64).ravel()


def _split_rows(label_numbers: Int64, seed: int) -> tuple[Int64, Int64]:
    """Returns the rows to fit on and the rows to hold out: a fifth of each label's rows, at least one if it has two."""
    rng = np.random.default_rng([seed, 0x5711])
    held_parts = []
    for label in range(int(label_numbers.max()) + 1):
        label_rows = rng.permutation(np.flatnonzero(label_numbers == label))
        if len(label_rows) < 2:
            held_count = 0
        else:
            held_count = max(1, round(VALIDATION_SHARE * len(label_rows)))
        held_parts.append(label_rows[:held_count])
    held_rows = np.sort(np.concatenate(held_parts))
    return np.setdiff1d(np.arange(len(label_numbers)), held_rows), held_rows


def _row_softmax(scores: Floats) -> Float64:
    from scipy.special import softmax

    return np.asarray(softmax(np.asarray(scores, dtype=np.float64), axis=1), dtype=np.float64)


def _log_loss(probabilities: Float64, y: Int64) -> float:
    label_probabilities = np.maximum(probabilities[np.arange(len(y)), y], 1e-12)
    return float(-np.log(label_probabilities).mean())


def _choose_strength(x: Float32, y: Int64, fit_rows: Int64, held_rows: Int64) -> tuple[float, float]:
    if not len(held_rows):
        return np.inf, STRENGTHS[1]
    class_count = int(y.max()) + 1
    best_choice = (np.inf, STRENGTHS[0])
    start_parameters: Float64 | None = None
    for strength in STRENGTHS:
        start_parameters = fit_linear(
            x[fit_rows], y[fit_rows], np.ones(len(fit_rows)), class_count, strength, start_parameters
        )
        loss = _log_loss(probabilities(start_parameters, x[held_rows]), y[held_rows])
        if loss >= best_choice[0]:
            break  # beyond a minimum the loss only rises, up to noise; the next fits are also the slowest
        best_choice = (loss, strength)
    return best_choice


def _linear_head(x: Float32, y: Int64, names: tuple[str, ...], strength: float) -> TaskModel:
    parameters = fit_linear(x, y, np.ones(len(y)), len(names), strength)
    return TaskModel(names, (), parameters[:-1], parameters[-1], strength, f"linear head (C = {strength:g})")


def fit_linear(
    x: Float32, y: Int64, w: Float64, class_count: int, strength: float, start: Float64 | None = None
) -> Float64:
    """Minimises strength * sum(w * cross-entropy) + |weight|^2 / 2 by L-BFGS, in the caller's number of threads.

    Args:
        x: contiguous, float32 [n, d].
        y: int64 [n] in [0, class_count), each of which occurs.
        w: weights [n], of mean 1.
        strength: inverse regularisation.
        start: parameters from which the search begins; zeros if None.

    Returns:
        float64 [d + 1, class_count], the bias last.
    """
    from scipy.optimize import minimize

    row_count, column_count = x.shape
    row_weights = (w / row_count).astype(np.float32)[:, None]
    weight_decay = 1.0 / (strength * row_count)
    row_numbers = np.arange(row_count)

    def objective(flat: Float64) -> tuple[float, Float64]:
        parameters = flat.reshape(column_count + 1, class_count)
        # float32 products: the data are float32, and the fit is needed to three digits only.
        logits = x @ parameters[:-1].astype(np.float32) + parameters[-1].astype(np.float32)
        # The maximum of each row, in a layout in which numpy takes it ten times as fast as along the short rows.
        logits -= np.ascontiguousarray(logits.T).max(axis=0)[:, None]
        label_logits = logits[row_numbers, y]
        np.exp(logits, out=logits)
        exponential_sums = logits.sum(axis=1, keepdims=True)
        loss = float((row_weights[:, 0] * (np.log(exponential_sums[:, 0]) - label_logits)).sum(dtype=np.float64))
        logits /= exponential_sums
        logits[row_numbers, y] -= 1.0
        logits *= row_weights
        gradient = np.empty_like(parameters)
        gradient[:-1] = x.T @ logits
        gradient[:-1] += weight_decay * parameters[:-1]
        gradient[-1] = logits.sum(axis=0)
        return loss + 0.5 * weight_decay * float((parameters[:-1] ** 2).sum()), gradient.ravel()

    if start is None:
        start_flat = np.zeros((column_count + 1) * class_count)
    else:
        start_flat = start.ravel()
    solution = minimize(
        objective,
        start_flat,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 300, "gtol": 2e-4, "ftol": 1e-9, "maxcor": 20},
    )
    return np.asarray(solution.x, dtype=np.float64).reshape(column_count + 1, class_count)


def classifier(
    embeddings: Float32, labels: Int64, class_count: int, *, strength: float, weights: Float64 | None = None
) -> Float64:
    """Trains a linear classifier, float64 [d + 1, classes], bias last; a label without texts has the bias ``NEVER``.

    Args:
        embeddings, labels: of the texts, float32 [n, d] and int64 [n].
        class_count: number of labels.
        strength: inverse regularisation.
        weights: non-negative, one per text; only their ratios matter.
    """
    weights_and_bias = np.zeros((embeddings.shape[1] + 1, class_count))
    weights_and_bias[-1] = NEVER
    present_labels, present_numbers = np.unique(labels, return_inverse=True)
    if len(present_labels) < 2:
        weights_and_bias[-1, present_labels] = 0.0
        return weights_and_bias
    if weights is None:
        row_weights = np.ones(len(labels))
    else:
        row_weights = weights * (len(weights) / weights.sum())
    features32 = np.ascontiguousarray(embeddings, dtype=np.float32)
    with one_library_thread():
        weights_and_bias[:, present_labels] = fit_linear(
            features32, present_numbers.ravel().astype(np.int64), row_weights, len(present_labels), strength
        )
    return weights_and_bias


def classifiers(
    embeddings: Float32, labels: Int64, author: Int64, generator_count: int, label_shares: Float64, strength: float
) -> Float64:
    """Trains one classifier per generator on its own texts alone: float64 [K, d + 1, C].

    Coefficients lie on the grid on which parties take them (undersong_protocol.statistics.classifier_votes). Texts are
    weighted to the label shares of the records that the classifiers will be tried on.

    Args:
        embeddings, labels: of all texts, float32 [n, d] and int64 [n].
        author: number of the generator of each text, int64 [n], below ``generator_count``.
        label_shares: share of each label, float64 [C].
        strength: inverse regularisation.
    """
    heads_by_generator = []
    for generator_number in range(generator_count):
        generator_embeddings = embeddings[author == generator_number]
        generator_labels = labels[author == generator_number]
        row_weights = (label_shares / np.maximum(np.bincount(generator_labels, minlength=len(label_shares)), 1))[
            generator_labels
        ]
        heads_by_generator.append(
            classifier(
                generator_embeddings, generator_labels, len(label_shares), strength=strength, weights=row_weights
            )
        )
    return COEFFICIENTS.quantised(np.stack(heads_by_generator))


def probabilities(head: Float64, rows: Any) -> Float64:
    """Probability of each label, float64 [n, classes], by a linear head, float64 [d + 1, classes], its bias last.

    ``rows`` [n, d] are features like those that it was trained on, dense or sparse.
    """
    return _row_softmax(rows @ head[:-1] + head[-1])


class _AdamW:
    """torch's AdamW by its functional form: its class imports torch's compiler, which takes longer than training."""

    def __init__(self, parameters: Sequence[Any], *, rate: float, decay: float) -> None:
        import torch

        self._parameters = list(parameters)
        self._rate = rate
        self._decay = decay
        self._means, self._squares = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
        self._steps = [torch.tensor(0.0) for _ in parameters]

    def step(self) -> None:
        """Changes the parameters by one step along their gradients, and clears the gradients."""
        import torch
        from torch.optim.adamw import adamw

        options = {"lr": self._rate, "weight_decay": self._decay, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        gradients = [parameter.grad for parameter in self._parameters]
        with torch.no_grad():
            adamw(
                *(self._parameters, gradients, self._means, self._squares, [], self._steps),
                **options,
                foreach=False,
                amsgrad=False,
                maximize=False,
            )
        for parameter in self._parameters:
            parameter.grad = None


class _TorchMLP:
    """The MLP that :func:`adapt` trains, with a random generator of its own: torch's global state is unchanged."""

    def __init__(self, input_width: int, class_count: int, seed: int, hidden: Sequence[int]) -> None:
        import torch

        self.rng = torch.Generator().manual_seed(seed % (1 << 63))

        def layer(input_width: int, output_width: int, bound: float) -> tuple[torch.Tensor, torch.Tensor]:
            weight = (torch.rand(input_width, output_width, generator=self.rng) * 2 - 1) * bound
            return weight.requires_grad_(), torch.zeros(output_width).requires_grad_()

        layer_widths = (input_width, *hidden)
        self.hidden = [layer(inputs, outputs, (6.0 / inputs) ** 0.5) for inputs, outputs in pairwise(layer_widths)]
        self.weight, self.bias = layer(layer_widths[-1], class_count, (1.0 / layer_widths[-1]) ** 0.5)
        parameters = [tensor for pair in (*self.hidden, (self.weight, self.bias)) for tensor in pair]
        self.optimiser = _AdamW(parameters, rate=MLP_RATE, decay=1e-2)

    def features(self, activations: Any, *, drop: bool = False) -> Any:
        """The last hidden layer's activations of scaled embeddings, with or without dropout."""
        import torch

        for weight, bias in self.hidden:
            activations = torch.relu(activations @ weight + bias)
            if drop:
                activations = (
                    activations
                    * (torch.rand(activations.shape, generator=self.rng) >= CORAL_DROPOUT).to(activations.dtype)
                    / (1 - CORAL_DROPOUT)
                )
        return activations

    def epoch(
        self, x: Any, y: Any, scale: float, *, batch_size: int = MLP_BATCH, penalty: Callable[[Any], Any] | None = None
    ) -> None:
        """Trains on all rows once, in random order.

        Args:
            x, y: unit embeddings [n, d] and label numbers [n].
            scale: factor of the embeddings, with which inputs have unit variance.
            penalty: added to the loss: a function of a batch's features.
        """
        import torch

        row_order = torch.randperm(len(x), generator=self.rng)
        for batch_rows in torch.split(row_order, batch_size):
            scaled_inputs = x[batch_rows] * scale
            logits = self.features(scaled_inputs, drop=True) @ self.weight + self.bias
            loss = torch.nn.functional.cross_entropy(logits, y[batch_rows])
            if penalty is not None and len(batch_rows) > 1:
                loss = loss + penalty(self.features(scaled_inputs))
            loss.backward()
            self.optimiser.step()

    def freeze(self, names: tuple[str, ...], epoch_count: int, scale: float) -> TaskModel:
        layer_pairs = [[part.detach().numpy() for part in pair] for pair in (*self.hidden, (self.weight, self.bias))]
        weights, biases = zip(*layer_pairs, strict=True)
        return _frozen_mlp(weights, biases, names, epoch_count, scale)


def _train_epochs(
    x: Float32, y: Int64, names: tuple[str, ...], seed: int, hidden: Sequence[int]
) -> Iterator[TaskModel]:
    """Yields the MLP head after each epoch of its training by Adam."""
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier(
        hidden_layer_sizes=tuple(hidden),
        alpha=MLP_DECAY,
        batch_size=min(MLP_BATCH, len(x)),
        learning_rate_init=MLP_RATE,
        random_state=np.random.RandomState(seed % (1 << 32)),  # one state for all epochs, or all would have one order
    )
    # Unit embeddings are scaled to coordinates of variance 1, in which the layers' first weights have the right size.
    input_scale = float(
        np.sqrt(x.shape[1]) / max(float(np.sqrt((x.astype(np.float64) ** 2).sum(axis=1).mean())), 1e-12)
    )
    scaled_inputs = x * np.float32(input_scale)
    for epoch in count(1):
        model.partial_fit(scaled_inputs, y, classes=np.arange(len(names)))
        yield _frozen_mlp(model.coefs_, model.intercepts_, names, epoch, input_scale)


def _frozen_mlp(
    weights: Sequence[Any], biases: Sequence[Any], names: tuple[str, ...], epoch_count: int, scale: float
) -> TaskModel:
    """Copies layers that were trained on embeddings times ``scale`` into a model of the embeddings themselves."""
    layers = [
        (np.array(w, dtype=np.float64), np.array(b, dtype=np.float64)) for w, b in zip(weights, biases, strict=True)
    ]
    layers[0] = (layers[0][0] * scale, layers[0][1])
    *hidden, (weight, bias) = layers
    if len(bias) == 1:  # scikit-learn gives two labels one logistic unit: the second label's score above the first's
        weight = np.hstack([np.zeros_like(weight), weight])
        bias = np.append(0.0, bias)
    hidden_words = " and ".join(str(len(layer_bias)) for _, layer_bias in hidden) + " units"
    return TaskModel(
        names, tuple(hidden), weight, bias, epoch_count, f"MLP head ({hidden_words}, {epoch_count} epochs)"
    )


def _choose_epochs(
    x: Float32,
    y: Int64,
    fit_rows: Int64,
    held_rows: Int64,
    names: tuple[str, ...],
    seed: int,
    hidden: Sequence[int],
) -> tuple[float, int]:
    """Returns the lowest loss on the held-out rows that an epoch of training reaches, and this epoch's number."""
    if not len(held_rows):
        return np.inf, MLP_EPOCHS // 4
    best_choice = (np.inf, 1)
    for epoch, model in enumerate(
        islice(_train_epochs(x[fit_rows], y[fit_rows], names, seed, hidden), MLP_EPOCHS), start=1
    ):
        loss = _log_loss(model.probabilities(x[held_rows]), y[held_rows])
        if loss < best_choice[0]:
            best_choice = (loss, epoch)
        if epoch - best_choice[1] >= MLP_PATIENCE:
            break
    return best_choice


WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0)  # weights of the CORAL loss among which validation chooses
EPOCHS = 15  # of adaptation
BATCH = 256  # rows of a step; covariances of 256 hidden units need many
LEAST_TARGET_TEXTS = 20


def adapt(
    source: Float32,
    labels: list[str] | tuple[str, ...],
    target: Float32,
    *,
    seed: int = 0,
    head: Head | None = None,
) -> TaskModel:
    """Trains the MLP head on ``source`` [n, d] with labels, its features aligned with those of ``target`` [m, d].

    A fifth of the source is held out. Of the weights of the CORAL loss with which the classification loss on that fifth
    is within one (paired) standard error of the best, the largest is taken: the data say nothing against it. Then the
    head is trained on all of the source. ``head`` "three-layer" is DP-KPS's: its layers, loss / (4 d^2), weight 1.

    Raises ConfigurationError for fewer than two labels or fewer than 20 target texts.
    """
    label_names, label_numbers = _number_labels(labels, len(source))
    if len(target) < LEAST_TARGET_TEXTS:
        raise ConfigurationError(
            f"{len(target)} target texts are too few for a covariance",
            f"give at least {LEAST_TARGET_TEXTS}",
            code="too-few-texts",
        )
    row_order = np.random.default_rng([seed, 0xC0]).permutation(len(label_numbers))
    held_rows = row_order[: max(1, round(VALIDATION_SHARE * len(label_numbers)))]
    fit_rows = row_order[len(held_rows) :]
    if head == "three-layer":
        coral_weight = 1.0
    else:
        losses = {}
        for weight in WEIGHTS:
            tried_model = _train_adapted(source[fit_rows], label_numbers[fit_rows], label_names, target, weight, seed)
            true_probabilities = tried_model.probabilities(source[held_rows])[
                np.arange(len(held_rows)), label_numbers[held_rows]
            ]
            losses[weight] = -np.log(np.maximum(true_probabilities, 1e-12))
        best_weight = min(losses, key=lambda weight: float(losses[weight].mean()))
        # The losses are paired: the same held-out texts under two weights differ far less than texts among each other.
        coral_weight = max(weight for weight in WEIGHTS if _no_worse(losses[weight] - losses[best_weight]))
    plain_model, adapted_model = (
        _train_adapted(source, label_numbers, label_names, target, weight, seed, head or "mlp")
        for weight in (0.0, coral_weight)
    )
    distance_before, distance_after = (
        covariance_distance(model, source, target) for model in (plain_model, adapted_model)
    )
    description = (
        f"{adapted_model.description}, Deep CORAL weight {coral_weight:g}:"
        f" covariance distance {distance_before:.3f} -> {distance_after:.3f}"
    )
    return replace(adapted_model, chosen=coral_weight, description=description)


def _no_worse(excess_losses: Float64) -> bool:
    """Returns True if the mean of the excess losses, float64 [n], is at most its own standard error."""
    return bool(float(excess_losses.mean()) <= float(excess_losses.std()) / len(excess_losses) ** 0.5)


def covariance_distance(head: TaskModel, source: Float32, target: Float32) -> float:
    """Squared distance of the hidden features' covariances, over the squared norm of the target's (both Frobenius).

    ``source``, ``target``: embeddings, float32 [n, d].
    """
    source_covariance = np.cov(head.features(source), rowvar=False)
    target_covariance = np.cov(head.features(target), rowvar=False)
    return float(((source_covariance - target_covariance) ** 2).sum() / max(float((target_covariance**2).sum()), 1e-24))


def _train_adapted(
    x: Float32, y: Int64, names: tuple[str, ...], target: Float32, weight: float, seed: int, head: Head = "mlp"
) -> TaskModel:
    import torch

    model = _TorchMLP(x.shape[1], len(names), seed, HIDDEN_LAYERS.get(head, (HIDDEN_UNITS,)))
    input_scale = float(np.sqrt(x.shape[1]))  # unit embeddings get coordinates of variance 1
    scaled_target = torch.from_numpy(np.ascontiguousarray(target)) * input_scale

    def penalty(features: Any) -> Any:
        batch_rows = torch.randint(len(scaled_target), (min(BATCH, len(scaled_target)),), generator=model.rng)
        return weight * _coral_distance(
            features, model.features(scaled_target[batch_rows]), relative=head != "three-layer"
        )

    tensors = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y)
    with one_library_thread():
        for _ in range(EPOCHS):
            model.epoch(*tensors, input_scale, batch_size=BATCH, penalty=penalty if weight else None)
    return model.freeze(names, EPOCHS, input_scale)


def _coral_distance(source: Any, target: Any, *, relative: bool = True) -> Any:
    """Squared distance of the covariances of two feature matrices [n, d], divided by a scale.

    The scale is the target's squared norm, a constant to the gradient, or 4 d^2 if not ``relative``.
    """
    import torch

    source_covariance = torch.cov(source.T)
    target_covariance = torch.cov(target.T)
    squared_distance = (source_covariance - target_covariance).square().sum()
    return squared_distance / (
        target_covariance.detach().square().sum().clamp_min(1e-12) if relative else 4 * len(target_covariance) ** 2
    )


@dataclass(frozen=True, eq=False)
class FineTunedModel:
    """A fine-tuned classifier of texts; ``labels`` names the columns that ``probabilities`` returns."""

    labels: tuple[str, ...]
    description: str
    _model: Any = field(repr=False)
    _tokenizer: Any = field(repr=False)
    _settings: FineTuning

    def probabilities(self, texts: Sequence[str]) -> Float64:
        """Probability of each label for each text, float64 [n, L]; rows sum to 1."""
        import torch

        text_logits = torch.from_numpy(logits(self._model, self._tokenizer, texts, self._settings))
        return np.asarray(torch.softmax(text_logits, dim=1).numpy(), dtype=np.float64)


def fine_tune(
    texts: Sequence[str],
    labels: Sequence[str],
    settings: FineTuning,
    *,
    weights: npt.ArrayLike | None = None,
    seed: int = 0,
) -> FineTunedModel:
    """Fine-tunes a whole encoder on labelled texts, and keeps the epoch with the lowest loss on a held-out fifth.

    It uses a GPU if torch sees one. torch's global random state is restored afterwards. Raises ConfigurationError
    if ``settings.path`` holds no usable model, or there is not one label and one weight for each text.
    """
    import torch

    label_names, label_numbers = _number_labels(labels, len(texts))
    if weights is None:
        text_weights = np.ones(len(texts))
    else:
        text_weights = np.asarray(weights, dtype=np.float64)
    if (
        text_weights.shape != (len(texts),)
        or not np.isfinite(text_weights).all()
        or (text_weights < 0).any()
        or text_weights.sum() <= 0
    ):
        raise ConfigurationError(
            f"weights of shape {text_weights.shape} for {len(texts)} texts are not usable",
            "give each text one finite weight of 0 or more, and one of them more than 0",
        )
    text_weights = text_weights * (len(text_weights) / text_weights.sum())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, tokenizer = load(settings.path, len(label_names))
        model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        text_order = np.random.default_rng([seed, 0xBE27]).permutation(len(texts))
        held_rows = text_order[: max(1, round(VALIDATION_SHARE * len(texts)))]
        epoch = optimise(
            model,
            tokenizer,
            TrainingTexts(texts, label_numbers, text_weights),
            fit=text_order[len(held_rows) :],
            held=held_rows,
            settings=settings,
            shuffled=lambda rows: rows[torch.randperm(len(rows)).numpy()],
        )
    description = f"fine-tuned {settings.path.name} (epoch {epoch} of {settings.epochs})"
    return FineTunedModel(label_names, description, model, tokenizer, settings)
