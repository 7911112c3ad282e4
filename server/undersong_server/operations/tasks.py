"""Task files: write a new one, plan it, try its generators; their tables, read by one rule for plan and simulation.

Method packages: write a new one.
"""

import json
import keyword
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.files import is_empty
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, MemoryCache, PublicFileCache
from undersong_common.models.fine_tuning import check_folder
from undersong_common.models.model_files import PACKAGED
from undersong_common.printable import counted
from undersong_common.program import plugins
from undersong_common.program.configuration import nearest
from undersong_common.text.row_files import UTF_8, column_names
from undersong_common.text.table import Table, read_table
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_server import methods
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.generators.endpoints import UNREPORTED
from undersong_server.generators.interface import (
    TOKENS_A_WORD,
    CachingGenerator,
    Completion,
    GenerationRequest,
    Generator,
    GeneratorSettings,
    Loss,
    PaidGenerator,
    PromptFormat,
    Surroundings,
    embeds_nothing,
)
from undersong_server.generators.orders import Order, Requests
from undersong_server.generators.reading import read
from undersong_server.operations.contacts import contact_faults
from undersong_server.report.usefulness import read_test_file
from undersong_server.runs.held_out import same_file_faults
from undersong_server.runs.planning import (
    PlanFigures,
    build_prompts,
    cap_faults,
    coordinator_task,
    plan_figures,
    plan_run,
    public_lengths,
)
from undersong_server.runs.task import Task, load

TEXTS = 5  # number of texts that a trial of a generator orders
METHOD_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
LARGEST_LABEL_COUNT = 100
TEMPLATES = Path(__file__).parent / "new_method"


def write_template(
    out: Path,
    source: Path | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    encoding: str = UTF_8,
) -> None:
    """Writes a task file (TOML) with every key explained; columns and labels come from the table ``source`` if given.

    Args:
        text, label, user: columns; None looks for the usual names (and for no user).
        encoding: of a CSV, TSV or JSONL source.

    Raises ConfigurationError if ``out`` exists, and for a source that cannot be read, or without such a column. Labels
    of a source become public in this file, which states that.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: exists already", "choose another --out, or remove it", code="file-exists")
    folder = out.absolute().parent
    columns_by_role = {"text": text, "label": label}
    columns = {role: column or role for role, column in columns_by_role.items()}
    labels = ["first label", "second label"]
    task_name, path = "my task", "private.jsonl"
    if source is not None:
        source_columns = column_names(source, encoding)
        columns = {role: column or _column(source_columns, role, source) for role, column in columns_by_role.items()}
        private_table = read_table(source, columns["text"], columns["label"], user, encoding=encoding)
        labels = sorted(set(private_table.labels or ()))
        if len(labels) > LARGEST_LABEL_COUNT:
            raise ConfigurationError(
                f"{source}: column {columns['label']!r} has {len(labels)} different values, of at most"
                f" {LARGEST_LABEL_COUNT} labels",
                "name the column of labels (--label-field), or write the task file by hand",
            )
        task_name = source.stem
        absolute_path = source.absolute()
        if absolute_path.is_relative_to(folder):
            path = str(absolute_path.relative_to(folder))
        else:
            path = str(absolute_path)
    task_template = resources.files("undersong_server.runs").joinpath("task_template.txt").read_text(encoding="utf-8")
    task_text = task_template.format(
        name=json.dumps(task_name),
        labels=json.dumps(labels, ensure_ascii=False),
        path=json.dumps(path),
        text=json.dumps(columns["text"]),
        label=json.dumps(columns["label"]),
        user='# user = "patient"' if user is None else f"user = {json.dumps(user)}",
        encoding="" if encoding == UTF_8 else f"encoding = {json.dumps(encoding)}\n",
        output=json.dumps(f"runs/{task_name.replace(' ', '-')}"),
    )
    out.write_text(task_text, encoding="utf-8")


def _column(columns: list[str], role: str, source: Path) -> str:
    role_synonyms = {
        "text": ("text", "note", "content", "sentence", "document"),
        "label": ("label", "class", "category", "intent"),
    }
    for candidate in role_synonyms[role]:
        if candidate in columns:
            return candidate
    raise ConfigurationError(
        f"{source}: no column looks like the {role}",
        f"name one with --{role}-field; {nearest(role, columns)}",
        code="no-such-column",
    )


@dataclass(frozen=True)
class TaskPlan:
    """A task's plan, as ``undersong plan`` shows it.

    Attributes:
        unready: reasons why a simulation would refuse the task, one sentence each; a coordinator needs none of it.
        remarks: parts of the task file that this plan ignores.
    """

    figures: PlanFigures
    unready: tuple[str, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.figures.to_json(), "unready": list(self.unready), "remarks": list(self.remarks)}


def plan(task_file: Path, assignments: Sequence[str] = (), *, environment: Mapping[str, str]) -> TaskPlan:
    """Computes every private sum of a run of the task, its noise, and the generators' calls. Spends nothing.

    Reads every file that a simulation reads, by the same rule; it reports only counts of private rows.

    Args:
        assignments: ``section.key=value`` overrides.
        environment: variables in which the generators find their keys, such as ``os.environ``; nothing is asked.

    Raises ConfigurationError for an invalid task, with file, key, value and remedy: all bad files, budgets and missing
    keys at once.
    """
    task = load(task_file, assignments)
    run_plan = plan_run(task)
    task_figures = plan_figures(run_plan)
    contacts = {"publication.contact": task.publication.contact, "task.contact": task.task.contact}
    ConfigurationError.raise_together(
        [
            *task_faults(task, run_plan.plan, environment=environment),
            *cap_faults(run_plan),
            *same_file_faults(task),
            *contact_faults(contacts),
        ]
    )
    unready_words = () if task.data.path else ("data.path names no private records (a coordinator needs none)",)
    return TaskPlan(task_figures, unready_words, task.remarks)


@dataclass(frozen=True)
class Tried:
    """One order of a trial.

    Attributes:
        system, prompt, stop: input of the model.
        answer: raw answer; the error's words if there was none.
        text: text found in the answer; ``fault``: kind of fault of the answer, "" for none.
        finish: reason why the answer ended, if the generator reports it.
        note: the generator's note on it, e.g. that the endpoint reports no usage that can be true.
        seconds: from the first request to this answer.
        lost_tokens, lost_usd: upper bounds of the cost of attempts whose answers were lost between the previous answer
            and this one.
    """

    label: str
    system: str
    prompt: str
    stop: tuple[str, ...]
    answer: str
    text: str
    fault: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    price_usd: float
    seconds: float
    note: str = ""
    lost_tokens: int = 0
    lost_usd: float = 0.0


def cost_of(tried_orders: Sequence[Tried]) -> str:
    """Writes the time, tokens and price of all orders of a trial in words, and what lost answers cost at most."""
    tokens = counted(sum(order.prompt_tokens + order.completion_tokens for order in tried_orders), "token")
    longest_seconds = max(order.seconds for order in tried_orders)
    total_price_usd = sum(order.price_usd for order in tried_orders)
    lost_tokens = sum(order.lost_tokens for order in tried_orders)
    lost_usd = sum(order.lost_usd for order in tried_orders)
    losses = ""
    if lost_tokens:
        losses = f"; answers lost on the way cost {counted(lost_tokens, 'token')}, US$ {lost_usd:.4f} at most"
    unreported_count = sum(order.note == UNREPORTED for order in tried_orders)
    note_words = ""
    if unreported_count:
        note_words = f"; {UNREPORTED}: {unreported_count}, which count at their worst case"
    return f"{longest_seconds:.2f} s, {tokens}, US$ {total_price_usd:.4f}{note_words}{losses}"


def try_generator(
    name: str,
    task_file: Path,
    assignments: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    kind: str = "zero_shot",
    texts: int = TEXTS,
    seed: int = 0,
) -> tuple[Tried, ...]:
    """Orders a few texts from one generator of a task, for its labels in turn. The task's data are not read.

    Args:
        kind: kind of the prompts; one that shows no examples.
        texts: number of texts.

    Raises ConfigurationError for a wrong task file or an unknown generator, and errors of the generator.
    """
    task = load(task_file, assignments)
    return try_task(name, task, str(task_file), environment=environment, trial=Trial(kind, texts, seed))


def ask_each_generator(
    task_file: Path, assignments: Sequence[str] = (), *, environment: Mapping[str, str]
) -> dict[str, Tried]:
    """Orders one text of the first label from every generator of a task, by name. It may cost money.

    Raises errors of the generators: of one that cannot be built, and of the first that gives no answer.
    """
    task = load(task_file, assignments)
    answer_by_generator: dict[str, Tried] = {}
    for settings in task.generators:
        (tried_order,) = try_task(settings.name, task, str(task_file), environment=environment, trial=ONE_TEXT)
        if tried_order.fault:
            raise GenerationError(
                f"generator {settings.name}: {tried_order.fault}: {tried_order.answer}",
                f"see what it wrote with: undersong try {settings.name}",
            )
        answer_by_generator[settings.name] = tried_order
    return answer_by_generator


def try_in_run(home: Path, run: str, name: str, *, environment: Mapping[str, str], public_cache: Path) -> Tried:
    """Orders one text of the first label from a generator of a run's task, as the run would. It may cost money.

    Args:
        environment: variables in which the generator finds its key.
        public_cache: file with embeddings of public texts.

    Raises ConfigurationError for an unknown run or generator, or one that cannot be built.
    """
    stored_plan = CoordinatorHome(home).run(run).planned()
    task = coordinator_task(stored_plan.task, Path(stored_plan.folder), stored_plan.roster)
    (tried_order,) = try_task(
        name, task, f"run {run!r}", environment=environment, public_cache=public_cache, trial=ONE_TEXT
    )
    return tried_order


@dataclass(frozen=True)
class Trial:
    """The orders of a trial.

    Attributes:
        kind: kind of the prompts; one that shows no examples.
        texts: number of texts, ordered for the task's labels in turn.
        seed: seed of the requests; None takes another one each time.
    """

    kind: str = "zero_shot"
    texts: int = TEXTS
    seed: int | None = None


ONE_TEXT = Trial(texts=1)
DEFAULT_TRIAL = Trial()


def try_task(
    name: str,
    task: Task,
    origin: str,
    *,
    environment: Mapping[str, str],
    public_cache: Path | None = None,
    trial: Trial = DEFAULT_TRIAL,
) -> tuple[Tried, ...]:
    """Orders texts as :func:`try_generator` does, from a generator of a task that ``origin`` names in errors.

    Args:
        public_cache: file with embeddings of public texts; None stores no embedding.
    """
    settings = _find_generator(name, task, origin)
    folder = task.locate("")

    @cache  # The embedder is loaded at its first use only, because most generators embed nothing.
    def embedder() -> CachedEmbedder:
        return CachedEmbedder(
            embedders.load(task.embedder.model, task.embedder.max_windows),
            MemoryCache() if public_cache is None else PublicFileCache(public_cache),
        )

    generator_surroundings = Surroundings(task.task.labels, folder, lambda texts: embedder().encode(texts), environment)
    generator = settings.build(generator_surroundings)
    prompt_format = settings.prompt_format(folder)
    task_labels = task.task.labels or ("",)
    trial_orders = [
        Order(name, trial.kind, task_labels[order_number % len(task_labels)]) for order_number in range(trial.texts)
    ]
    if trial.seed is None:
        seed = time.time_ns() % 2**53
    else:
        seed = trial.seed
    requests = Requests(build_prompts(task), {name: prompt_format}, seed=seed, draw_words=public_lengths(task))
    requests_by_number, _ = requests.make("try", trial_orders, range(trial.texts), [1] * trial.texts)
    timed_answers = _ask(name, generator, [requests_by_number[order_number] for order_number in range(trial.texts)])
    tried_orders = tuple(
        _judge_answer(timed_answers[order_number], order, requests_by_number[order_number], task, prompt_format)
        for order_number, order in enumerate(trial_orders)
    )
    if isinstance(generator, CachingGenerator):
        generator.keep_texts(
            [
                (requests_by_number[order_number], not tried_text.fault)
                for order_number, tried_text in enumerate(tried_orders)
            ]
        )
    return tried_orders


def _find_generator(name: str, task: Task, origin: str) -> GeneratorSettings:
    """Returns the settings of a generator. Raises ConfigurationError for an unknown name."""
    for settings in task.generators:
        if settings.name == name:
            return settings
    raise ConfigurationError(
        f"{origin}: has no generator {name!r}",
        nearest(name, [settings.name for settings in task.generators]),
        code="unknown-generator",
    )


@dataclass(frozen=True)
class _TimedAnswer:
    """An answer with its seconds since the first request, and what was lost before it."""

    answer: Completion | GenerationError
    seconds: float
    loss: Loss


def _ask(name: str, generator: Generator, requests: Sequence[GenerationRequest]) -> list[_TimedAnswer]:
    """Returns the answer to each request; a request without one has an error that names the generator."""
    started_at_s = time.monotonic()
    answer_by_number: dict[int, _TimedAnswer] = {}
    previous_loss = Loss()
    for request_number, generator_answer in generator.answer(requests):
        current_loss = generator.lost if isinstance(generator, PaidGenerator) else Loss()
        loss = Loss(1, current_loss.tokens - previous_loss.tokens, current_loss.price_usd - previous_loss.price_usd)
        answer_by_number[request_number] = _TimedAnswer(generator_answer, time.monotonic() - started_at_s, loss)
        previous_loss = current_loss
    no_answer = _TimedAnswer(GenerationError(f"{name}: gave no answer"), time.monotonic() - started_at_s, Loss())
    return [answer_by_number.get(request_number, no_answer) for request_number in range(len(requests))]


def _judge_answer(
    timed_answer: _TimedAnswer, order: Order, request: GenerationRequest, task: Task, prompt_format: PromptFormat
) -> Tried:
    """Returns an answer as a run would read it, with its text or fault, its cost and its time."""
    order_answer = timed_answer.answer
    answer_reading = read(
        order_answer, request, language=task.task.language, line_breaks=task.task.line_breaks, whole=prompt_format.reads
    )
    if isinstance(order_answer, Completion):
        completion = order_answer
    else:
        completion = Completion(order_answer.problem)
    return Tried(
        label=order.label,
        system=request.system if prompt_format.reads else "",
        prompt=request.prompt if prompt_format.reads else "",
        stop=request.stop,
        answer=completion.text,
        text="" if answer_reading.fault else answer_reading.text,
        fault=answer_reading.fault,
        finish=completion.finish,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        price_usd=completion.price_usd,
        seconds=timed_answer.seconds,
        note=completion.note,
        lost_tokens=timed_answer.loss.tokens,
        lost_usd=timed_answer.loss.price_usd,
    )


def new_method(name: str, folder: Path) -> tuple[str, ...]:
    """Writes a package that declares the method ``name`` into ``folder``; returns its files, relative to it.

    The package holds the method with its plan, a test, and the entry point.

    Raises ConfigurationError for a name that is invalid or taken, and for a folder that holds anything.
    """
    module_name = name.replace("-", "_")
    if not METHOD_NAME.fullmatch(name) or keyword.iskeyword(module_name):
        raise ConfigurationError(
            f"{name!r} cannot name a method",
            "use small letters, digits and hyphens, and begin with a letter",
            code="invalid-name",
        )
    if name in methods.own_names() or plugins.find("methods", name) is not None:
        raise ConfigurationError(f"there is a method {name!r} already", "choose another name", code="name-taken")
    if module_name in sys.stdlib_module_names:
        raise ConfigurationError(
            f"{name!r} would hide Python's own module {module_name!r}", "choose another name", code="name-taken"
        )
    if folder.exists() and (not folder.is_dir() or not is_empty(folder)):
        raise ConfigurationError(
            f"{folder}: exists already", "choose another --out, or remove it", code="folder-exists"
        )
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python and TOML are written, of a name that was checked
    )
    template_words = {"name": name, "module": module_name}
    template_by_target = {
        "pyproject.toml": "pyproject.toml",
        f"src/{module_name}.py": "method.py",
        f"tests/test_{module_name}.py": "test.py",
    }
    for target, template in template_by_target.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(f"{template}.j2").render(template_words), encoding="utf-8")
    return tuple(template_by_target)


def read_private_files(task: Task) -> list[Table]:
    """Reads the private files of a task, in order. Raises ConfigurationError that names every bad file and its row."""
    data_section = task.data
    if data_section.path is None:
        raise ConfigurationError("data.path is missing", "name the private records (--set data.path=FILE)")
    file_faults, private_tables = [], []
    if task.task.labels and data_section.label is None:
        file_faults.append(("data.label is missing but task.labels is given", "name the label column"))
    if task.privacy.unit == "user" and data_section.user is None:
        file_faults.append(('privacy.unit is "user" but data.user names no column', "name it in data.user"))
    if not task.files:
        file_faults.append((f"data.path: {data_section.path}: no such file", "check the path"))
    for path in task.files:
        if not path.exists():
            file_faults.append((f"{path}: no such file (data.path)", "check the path"))
            continue
        try:
            private_tables.append(
                read_table(
                    path,
                    data_section.text,
                    data_section.label,
                    data_section.user,
                    columns=task.attribute_columns,
                    labels=task.task.labels,
                    encoding=data_section.encoding,
                )
            )
        except ConfigurationError as error:
            file_faults.append((error.problem, error.remedy))
    ConfigurationError.raise_together(file_faults)
    return private_tables


def task_faults(task: Task, plan: Plan | None = None, *, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields (fault, remedy) for files, models and keys that a task names; reads private files as a simulation does.

    Args:
        plan: plan of the task, if it has been made: the embedder is then checked against it too.
        environment: variables in which the generators find their keys.
    """
    encoder = task.evaluation.encoder
    models = (encoder if encoder in (None, PACKAGED) else str(task.locate(encoder)), task.teacher_model)
    task_checks: list[Callable[[], object]] = [
        partial(_check_sizes, task),
        partial(_check_embedder, task, plan),
        partial(build_prompts, task),
        *([] if task.data.path is None else [partial(read_private_files, task)]),
        *(partial(_check_generator, task, generator, environment) for generator in task.generators),
        partial(read_test_file, task),
        *(partial(check_folder, model) for model in models if model),
    ]
    for task_check in task_checks:
        try:
            task_check()
        except ConfigurationError as error:
            yield error.problem, error.remedy


def _check_sizes(task: Task) -> None:
    record_count = task.data.file_records
    if record_count is not None and task.parties > record_count:
        raise ConfigurationError(
            f"federation.parties is {task.parties}, but data.file_records states {counted(record_count, 'record')}",
            "lower federation.parties, or correct data.file_records",
        )


def _check_embedder(task: Task, plan: Plan | None) -> None:
    dimension = embedders.dimension(task.embedder.model)
    for planned in plan.sums if plan is not None else ():
        stated_size = planned.parameters.get("size", dimension)
        if planned.statistic == EmbeddingSum.name and stated_size != dimension:
            raise ConfigurationError(
                f"the embedding model gives {dimension} coordinates, method.embedding_size is {stated_size}",
                f"set method.embedding_size = {dimension}",
            )


def _check_generator(task: Task, generator: GeneratorSettings, environment: Mapping[str, str]) -> None:
    missing_files = [path for path in map(task.locate, generator.files) if not path.exists()]
    ConfigurationError.raise_together(
        (f"{path}: no such file (generator {generator.name})", "check the path") for path in missing_files
    )
    longest_answer = generator.longest_answer
    word_range = task.task.words
    if longest_answer is not None and word_range is not None and word_range[1] * TOKENS_A_WORD > longest_answer:
        raise ConfigurationError(
            f"generator {generator.name}: answers end at {longest_answer} tokens, but task.words asks for up to"
            f" {word_range[1]} words",
            f"let it write at least {round(word_range[1] * TOKENS_A_WORD)} tokens, or lower task.words",
        )
    generator.check(Surroundings(task.task.labels, task.locate(""), embeds_nothing, environment))
