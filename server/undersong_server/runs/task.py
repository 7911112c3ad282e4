"""The task file: one TOML file that states the task, the data, the privacy, the method and the models."""

import contextlib
import math
import os
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from undersong_common.errors import ConfigurationError
from undersong_common.models.model_files import MAX_WINDOWS, MOST_WINDOWS, PACKAGED
from undersong_common.printable import counted, fingerprinted, joined, name_fault, printable, repeated
from undersong_common.program import configuration
from undersong_common.text.row_files import SUFFIXES
from undersong_protocol.agreement.full_names import TASK_KEY, full_names_fault
from undersong_protocol.agreement.manifest import LONGEST_NAME
from undersong_protocol.agreement.plan import Privacy, Quorum
from undersong_protocol.limits import LARGEST_LABELS, LARGEST_PARTIES, LARGEST_SPARE_ATTEMPTS
from undersong_protocol.secagg.parameters import check_graph, check_quorum, default_threshold, defaults
from undersong_server import methods
from undersong_server.defaults import Head
from undersong_server.generators.kinds import GeneratorTable
from undersong_server.methods.interface import EXPECTED_RECORDS, MethodOptions
from undersong_server.methods.parts import papers
from undersong_server.pool import RESERVED_COLUMNS
from undersong_server.prompts.languages import for_text, language_code, language_name
from undersong_server.prompts.rendering import TaskWords

DEFAULT_PARTIES = 5


class StrictSection(BaseModel):
    """A section of the task file: frozen, and every key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskSection(TaskWords):
    """[task]: public words. They go to the model provider.

    Attributes:
        name: of the task, in the run's name and on every hospital's sheet: letters, digits, spaces, points and hyphens.
        purpose: reason for the run; the people at each hospital read it before they decide.
        language: of the texts, by its English name or its code; prompts have the name.
        words: least and most words of a text; without both, the models choose the length.
        revises: earlier run that this one replaces after a rejection; hospitals see the changes.
        operator: legal name of who asks, as each hospital's sheet begins with it; a coordinator fills in its own.
        contact: a person there, with a telephone number or an address; a coordinator fills in its own.
    """

    name: Annotated[str, Field(pattern=configuration.TITLE, max_length=80)]
    purpose: Annotated[str, Field(max_length=2000)] = ""
    language: Annotated[str, Field(max_length=40), BeforeValidator(for_text(language_name))] = ""
    words: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    revises: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    operator: Annotated[str, Field(max_length=500)] = ""
    contact: Annotated[str, Field(max_length=200)] = ""

    @model_validator(mode="after")
    def _words_of_the_task(self) -> "TaskSection":
        for label in self.label_descriptions:
            if label not in self.labels:
                raise ValueError(f"label_descriptions: {label!r} is no label of the task; write it as under labels")
        if self.words is not None and self.words[0] > self.words[1]:
            least, most = self.words
            raise ValueError(
                f"words: the least number, {least}, is above the most, {most}; state the smaller one first"
            )
        return self

    @field_validator("labels")
    @classmethod
    def _composed_labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        # The records' labels are read in the same Unicode form (undersong_common.text.table).
        return tuple(unicodedata.normalize("NFC", label) for label in labels)

    @field_validator("label_descriptions")
    @classmethod
    def _composed_keys(cls, descriptions: dict[str, str]) -> dict[str, str]:
        return {unicodedata.normalize("NFC", label): meaning for label, meaning in descriptions.items()}

    @field_validator("name", "labels")
    @classmethod
    def _check_readable(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        # Every party refuses a proposed run with an unreadable name or label.
        for name in (value,) if isinstance(value, str) else value:
            if name.strip() and (fault := name_fault(name, LONGEST_NAME)):
                raise ValueError(f"{printable(name, 60)!r} {fault}")
        return value

    @field_validator("labels")
    @classmethod
    def _check_distinct(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if len(labels) > LARGEST_LABELS:
            raise ValueError(f"has {len(labels)} labels; give at most {LARGEST_LABELS}")
        folded_labels = [label.strip().casefold() for label in labels]
        if "" in folded_labels:
            raise ValueError(f"label {folded_labels.index('') + 1} is empty; write a word for every label")
        if repeated_labels := repeated(folded_labels):
            same_labels = [printable(label, 60) for label in labels if label.strip().casefold() == repeated_labels[0]]
            raise ValueError(
                f"the labels {joined(list(map(repr, same_labels)))} differ in case and spaces alone; keep one"
            )
        return labels


class DataSection(StrictSection):
    """[data]: a simulation's private records and its parties' local model.

    Paths are relative to root, or else to the task file.

    Attributes:
        root: folder where relative paths start.
        path: the private records: one file that is dealt to the parties, or a file of each party.
        text: column of the texts.
        label: column of the labels.
        user: column of the patients, for the unit "user".
        encoding: of CSV, TSV and JSONL files.
        records: about so many records of one file that is dealt take part, drawn by the seed.
        file_records: number of records that the file has, as everybody may know; ``records`` needs it.
        curated: deals the records of all files in equal parts of a shuffle, without repeated records; no promise holds
            then.
        teacher_model: "packaged" or a folder, from which simulated parties fine-tune teachers.
    """

    root: str = ""
    path: str | tuple[str, ...] | None = None
    text: str = "text"
    label: str | None = None
    user: str | None = None
    encoding: str = "utf-8"
    records: Annotated[int, Field(ge=1)] | None = None
    file_records: Annotated[int, Field(ge=1)] | None = None
    curated: bool = False
    teacher_model: str = ""

    @model_validator(mode="after")
    def _rate_is_public(self) -> "DataSection":
        if self.records is not None and self.file_records is None:
            raise ValueError("records needs file_records: how many the file has, which counts as public")
        if self.records is not None and self.file_records is not None and self.records > self.file_records:
            raise ValueError(f"records ({self.records}) is above file_records ({self.file_records}); lower it")
        return self


class PublicationSection(StrictSection):
    """[publication]: intended publication of the data set, for those who approve the run and those who receive it.

    Attributes:
        where: place where the data set is published, or who receives it; hospitals read it before they decide.
        licence: its name, such as CC-BY-4.0, or a sentence.
        makers: who made the data set, as its card names them; without it, the coordinator's name alone.
        contact: an e-mail address, a telephone number or a web address at which receivers reach the makers.
        language: of the texts, by its code or its English name; without it, the task's language.
        intended_use: a sentence for the card.
        limits: a sentence for the card; uses for which the texts are not fit.
        trained_models: a sentence for the card; terms that hold for models trained on the texts, too.
        records: a sentence for the card; whose records they are, such as real patients' or invented ones.
        invented_records: every record is invented; card and report then begin with the word demonstration.
    """

    where: Annotated[str, Field(max_length=2000)] = ""
    licence: Annotated[str, Field(max_length=200)] = ""
    makers: Annotated[str, Field(max_length=500)] = ""
    contact: Annotated[str, Field(max_length=200)] = ""
    language: Annotated[str, BeforeValidator(for_text(language_code))] = ""
    intended_use: Annotated[str, Field(max_length=2000)] = ""
    limits: Annotated[str, Field(max_length=2000)] = ""
    trained_models: Annotated[str, Field(max_length=2000)] = ""
    records: Annotated[str, Field(max_length=2000)] = ""
    invented_records: bool = False

    @property
    def stated(self) -> str:
        """The place, licence, makers and contact that are given, as hospitals read and sign them; "" if none is."""
        further_words = {"licence": self.licence, "made by": self.makers, "contact": self.contact}
        return "; ".join(
            filter(None, (self.where, *(f"{key}: {words}" for key, words in further_words.items() if words)))
        )


UNPLANNED_EPSILON = 1.0  # epsilon of a task that states its noise, until it is planned


class PrivacySection(StrictSection):
    """[privacy]: the promise. epsilon = inf is for research only and marks every output as not private.

    Attributes:
        epsilon: privacy loss of the whole run for one unit; smaller is more private, and the texts fit less well.
        noise_multiplier: noise of every private sum over its L2 sensitivity, in place of epsilon; the plan then states
            the epsilon that follows.
        delta: probability that the promise may fail; choose it far below 1 / (number of units).
        unit: protected unit: "sample" is one record, "user" all records of one patient at one hospital, "party" a
            whole hospital.
        max_per_user: records of one patient that count; further ones are left out. For the unit "user".
        user_contribution: "mean" lets a patient with many records weigh no more than one with a single record.
        max_records: most records of a party that take part.
        expected_records: of all parties together, as a public guess; nothing is counted.
        lengths: measures the texts' lengths too, with ``lengths_share`` of the budget; texts are ordered so.
        lengths_share: part of epsilon for the lengths.
        distance: measures the records' mean embedding too, with ``distance_share`` of the budget, from which every
            round's distance to the records follows; expected_records has to be stated.
        distance_share: part of epsilon for that.
        support: asks the records last whose texts are near them, with ``support_share`` of the budget; texts of a
            generator that has too few stand in set-aside.jsonl. The default method does it by itself.
        support_share: part of epsilon for that.
    """

    epsilon: Annotated[float, Field(gt=0)]
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: Literal["sample", "user", "party"] = "sample"
    max_per_user: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    user_contribution: Literal["mean", "sum"] = "mean"
    max_records: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    expected_records: Annotated[int, Field(ge=1, le=10_000_000)] = EXPECTED_RECORDS
    lengths: bool = False
    lengths_share: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    distance: bool = False
    distance_share: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    support: bool = False
    support_share: Annotated[float, Field(gt=0, lt=0.5)] = 0.1

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("noise_multiplier") is not None:
            if "epsilon" in values:
                raise ValueError("epsilon and noise_multiplier are both there; epsilon follows from noise: state one")
            return {**values, "epsilon": UNPLANNED_EPSILON}
        return values

    def promise(self) -> Privacy:
        return Privacy(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            max_per_unit=1 if self.unit == "sample" else self.max_per_user,
            contribution=self.user_contribution,
            max_records=self.max_records,
        )


class FederationSection(StrictSection):
    """[federation]: numbers of parties, dropouts and colluders.

    The defaults follow from the number of parties (docs/secagg.md, "Manifest").

    Attributes:
        parties: of a simulation that deals one file; 5 by default, or one for each file.
        alpha: Dirichlet concentration over labels of a simulation that deals one file; inf gives equal parts.
        tolerated_dropouts: parties that may fall silent in a private sum, and the sum of the others still opens.
        colluders: parties that may work with the coordinator against the others, and the promise still holds.
        threshold: parties that have to answer before a sum opens.
        spare_attempts: further attempts at a sum, each of which is charged in advance.
        post_quantum: masks that no later quantum computer opens.
        full_names: full name and town by party, such as stella-maris = "Stella Maris Hospital, Porto", for sheets, card
            and report; those that the coordinator's operator has noted replace them.
    """

    parties: Annotated[int, Field(ge=1, le=LARGEST_PARTIES)] | None = None
    alpha: Annotated[float, Field(gt=0)] = math.inf
    tolerated_dropouts: Annotated[int, Field(ge=0)] | None = None
    colluders: Annotated[int, Field(ge=0)] | None = None
    threshold: Annotated[int, Field(ge=1)] | None = None
    spare_attempts: Annotated[int, Field(ge=0, le=LARGEST_SPARE_ATTEMPTS)] = 0
    post_quantum: bool = True
    full_names: dict[str, str] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _stated_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A run's folder is recognised by a hash of these values, which a task without full names must keep.
        section_values: dict[str, Any] = serialize(self)
        return {key: value for key, value in section_values.items() if key != TASK_KEY or value}

    @field_validator("full_names")
    @classmethod
    def _check_full_names(cls, full_names: dict[str, str]) -> dict[str, str]:
        if fault := full_names_fault(full_names, full_names):
            raise ValueError(fault)
        return full_names


class MethodSection(BaseModel):
    """[method]: how the texts are ordered and chosen; its options are checked by its own file.

    Attributes:
        name: the default, "undersong", needs no tuning.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str


class AttributeSection(StrictSection):
    """[[attributes]]: a public attribute of a record, beside its label.

    Attributes:
        name: of the column in the corpus.
        values: a record has one of them; a missing or any other value of a column is a value of its own.
        column: of the private files of a simulation; each party names its own. Without it, a record has the value that
            its text is nearest to.
    """

    name: Annotated[str, Field(pattern=configuration.COLUMN, max_length=60)]
    values: Annotated[tuple[str, ...], Field(min_length=1)]
    column: str | None = None

    @field_validator("values")
    @classmethod
    def _composed_values(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(unicodedata.normalize("NFC", value) for value in values)

    @model_validator(mode="after")
    def _check_distinct(self) -> "AttributeSection":
        if self.name in RESERVED_COLUMNS:
            raise ValueError(f"{self.name!r} is a column of every corpus; choose another name")
        folded_values = [" ".join(value.split()).casefold() for value in self.values]
        if not all(folded_values):
            raise ValueError(f"value {folded_values.index('') + 1} is empty; write a word for every value")
        if repeated_values := repeated(folded_values):
            raise ValueError(f"{printable(repeated_values[0], 60)!r} stands more than once; list each value once")
        return self


class EmbedderSection(StrictSection):
    """[embedder]: "packaged" (all-MiniLM-L6-v2), a local folder, or another package's, "plug-in:NAME".

    Attributes:
        model: packaged, a local folder, or plug-in:NAME with the hash of its source at a daemon.
        max_windows: most windows that are read of a text longer than the model's window.
    """

    model: str = PACKAGED
    max_windows: Annotated[int, Field(ge=1, le=MOST_WINDOWS)] = MAX_WINDOWS


def _left_out_if_blank(name: object) -> object:
    """Returns None for a blank name: as a path it is the task's folder, and people blank a key to leave it out."""
    if isinstance(name, str) and not name.strip():
        return None
    return name


OptionalFile = Annotated[str | None, BeforeValidator(_left_out_if_blank)]


class EvaluationSection(StrictSection):
    """[evaluation]: a public test file, evaluated when the run has ended.

    Attributes:
        test: a file of public texts with labels; without it, nothing is evaluated.
        test_source: a sentence for the card; whether these texts are real, whose they are, and their licence.
        head: of one more task model, beside the panel.
        repeats: seeds with each of which every task model is trained; several give intervals.
        encoder: a local folder, or "packaged", that is fine-tuned beside the panel; slow without a GPU.
        epochs, batch, learning_rate, max_tokens: of its fine-tuning.
    """

    test: OptionalFile = None
    test_source: Annotated[str, Field(max_length=500)] = ""
    head: Head | None = None
    repeats: int = Field(default=1, ge=1)
    encoder: OptionalFile = None
    epochs: Annotated[int, Field(ge=1)] = 4
    batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 3e-5
    max_tokens: Annotated[int, Field(ge=1)] = 256


class PromptsSection(StrictSection):
    """[prompts]: prompts of the language models.

    Attributes:
        folder: whose templates replace the built-in ones of the same name.
        variety: adds public hints by which no two prompts of a batch are alike.
        near_duplicate: cosine of two texts of a label above which the later one is no sample; 1 drops exact ones only.
    """

    folder: OptionalFile = None
    variety: bool = True
    near_duplicate: Annotated[float, Field(gt=0, le=1)] = 0.98


class OutputSection(StrictSection):
    """[output]: the run's results.

    Attributes:
        dir: folder of the corpus, its card, report, manifest and ledgers.
    """

    dir: str = "runs/undersong"


class Task(StrictSection):
    """A whole task file, validated.

    Attributes:
        folder: where relative paths start.
        set_aside: the file's [method] options that are another method's than the one an override names.
        replaced: the file's values in other sections that a preset replaced, such as "federation.parties = 15, not 5".
    """

    task: TaskSection
    data: DataSection = DataSection()
    privacy: PrivacySection
    federation: FederationSection = FederationSection()
    method: MethodSection
    generators: tuple[GeneratorTable, ...] = ()
    attributes: tuple[AttributeSection, ...] = ()
    embedder: EmbedderSection = EmbedderSection()
    evaluation: EvaluationSection = EvaluationSection()
    prompts: PromptsSection = PromptsSection()
    output: OutputSection = OutputSection()
    publication: PublicationSection = PublicationSection()
    folder: Path = Path()
    set_aside: tuple[str, ...] = Field(default=(), exclude=True)
    replaced: tuple[str, ...] = Field(default=(), exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        """Adds the keys that [method] preset sets in other sections, where the data have none.

        What a file has there was replaced before (:func:`for_its_preset`); what stands now is a change by an override.

        A preset with steps that are not private promises nothing: the epsilon of the file is the one that its paper
        states, from which the noise is computed.
        """
        method = data.get("method")
        if not isinstance(method, Mapping) or not method.get("preset"):
            return data
        method_name = str(method.get("name"))
        preset_name = str(method["preset"])
        privacy_keys = data.get("privacy", {})
        preset_sections = papers.sections(method_name, preset_name)
        preset_data = {
            section_name: {**section_keys, **data.get(section_name, {})}
            for section_name, section_keys in preset_sections.items()
            if section_name != "method"
        }
        if papers.forbidden(method_name, preset_name) and privacy_keys.get("epsilon", math.inf) != math.inf:
            preset_data["method"] = {"stated_epsilon": privacy_keys["epsilon"], **method}
            preset_data["privacy"] = {**privacy_keys, "epsilon": math.inf}
        return {**data, **preset_data}

    @model_validator(mode="after")
    def _names_differ(self) -> "Task":
        if repeated_names := repeated(generator.name for generator in self.generators):
            raise ValueError(f"two [[generators]] share a name, {repeated_names[0]!r}; give each its own")
        if repeated_names := repeated(attribute.name for attribute in self.attributes):
            raise ValueError(f"two [[attributes]] share a name, {repeated_names[0]!r}; give each its own")
        return self

    @property
    def attribute_columns(self) -> dict[str, str]:
        """Columns of the private files by the attribute that they stand for."""
        return {attribute.name: attribute.column for attribute in self.attributes if attribute.column is not None}

    @property
    def public_words(self) -> dict[str, Any]:
        """The task's words in the manifest, which every party signs: name, labels, purpose, generators, ..."""
        optional_words = {
            "purpose": self.task.purpose,
            "publication": self.publication.stated,
            "revises": self.task.revises,
        }
        optional_words |= {"operator": self.task.operator, "contact": self.task.contact}
        required_words: dict[str, Any] = {"name": self.task.name, "description": self.task.description}
        return {
            **required_words,
            "labels": list(self.task.labels),
            **{key: sentence for key, sentence in optional_words.items() if sentence},
            "generators": [fingerprinted(generator.words, LONGEST_NAME) for generator in self.generators],
            **({"columns": list(self.attribute_columns)} if self.attribute_columns else {}),
        }

    @property
    def card_words(self) -> PublicationSection:
        """[publication] for the card: without a language of its own it gets the code of the task's language, if any.

        A phrase such as "Swiss German" has no code.
        """
        language = self.publication.language
        if not language:
            with contextlib.suppress(ValueError):
                language = language_code(self.task.language)
        return self.publication.model_copy(update={"language": language})

    def locate(self, path: str) -> Path:
        """Makes a path absolute: relative ones start at data.root, or else beside the task file."""
        if self.data.root:
            base_folder = Path(self.data.root)
        else:
            base_folder = self.folder
        return (base_folder / path).absolute()

    @property
    def teacher_model(self) -> str:
        """Model that simulated parties fine-tune as their teachers: "packaged", an absolute folder, or "" for none."""
        model = self.data.teacher_model
        if model in ("", PACKAGED):
            return model
        return str(self.locate(model))

    @property
    def files(self) -> tuple[Path, ...]:
        """The private files of a simulation: one that is dealt to the parties, or one per party (folder or pattern)."""
        files: list[Path] = []
        for path in self._stated_paths:
            if path.is_dir():
                files.extend(
                    sorted(folder_entry for folder_entry in path.iterdir() if folder_entry.suffix.lower() in SUFFIXES)
                )
            elif "*" in path.name:
                files.extend(sorted(path.parent.glob(path.name)))
            else:
                files.append(path)
        return tuple(files)

    @property
    def _stated_paths(self) -> list[Path]:
        stated_paths = (self.data.path,) if isinstance(self.data.path, str) else self.data.path or ()
        return list(map(self.locate, stated_paths))

    @property
    def one_file_per_party(self) -> bool:
        """True if the data come divided, as a list, a folder or a pattern of files, and no curator pools them."""
        path = self.data.path
        if self.data.curated:
            return False
        return not isinstance(path, str) or "*" in path or self.locate(path).is_dir()

    @property
    def parties(self) -> int:
        """Number of parties. Raises ConfigurationError if data.path and federation.parties disagree."""
        stated_parties = self.federation.parties
        if self.data.path is None or not self.one_file_per_party:
            if stated_parties is None:
                return DEFAULT_PARTIES
            return stated_parties
        file_count = len(self.files)
        if not file_count:
            raise ConfigurationError(
                f"data.path: no file is at {joined([printable(str(path)) for path in self._stated_paths])}",
                "correct the folder or the pattern",
                code="no-such-file",
            )
        if repeated_files := repeated(map(os.path.realpath, self.files)):
            raise ConfigurationError(
                f"data.path names {printable(repeated_files[0])} twice: its patients would count at two parties",
                "name each party's own file",
                code="file-twice",
            )
        if stated_parties is not None and stated_parties != file_count:
            raise ConfigurationError(
                f"federation.parties is {stated_parties} but data.path names {counted(file_count, 'file')}, one per"
                " party",
                "correct one of them; a single file is dealt to any number of parties",
            )
        return file_count

    def quorum(self) -> Quorum:
        """Numbers of parties, threshold, dropouts and colluders; defaults as in docs/secagg.md, "Manifest"."""
        settings = self.federation
        parties = self.parties
        if parties < 1:
            raise ConfigurationError("data.path names no file", "name the parties' files")
        _, dropouts, colluders = defaults(parties)
        if settings.tolerated_dropouts is None:
            dropouts = dropouts
        else:
            dropouts = settings.tolerated_dropouts
        colluders = colluders if settings.colluders is None else settings.colluders
        if settings.threshold is None:
            threshold = default_threshold(parties, colluders)
        else:
            threshold = settings.threshold
        try:
            check_quorum(parties, threshold, dropouts, colluders)
            check_graph(parties, dropouts, colluders)
        except ConfigurationError as error:
            raise ConfigurationError(f"[federation] {error.problem}", error.remedy, code=error.code) from None
        return Quorum(parties, threshold, dropouts, colluders, settings.spare_attempts, settings.post_quantum)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on options that were set aside, and on a preset that is changed or not private; often empty."""
        sentences = []
        if self.set_aside:
            set_aside_names = ", ".join(self.set_aside)
            sentences.append(f"set aside, as another method's than {self.method.name!r}: {set_aside_names}")
        preset_name = (self.method.model_extra or {}).get("preset")
        if preset_name:
            if self.replaced:
                sentences.append(f"the preset {preset_name!r} replaces the task file's: {'; '.join(self.replaced)}")
            if preset_changes := self._changes_of_preset(preset_name):
                sentences.append(f"the task changes the preset {preset_name!r}: {'; '.join(preset_changes)}")
            sentences += papers.forbidden(self.method.name, preset_name)
        return tuple(sentences)

    def _changes_of_preset(self, preset: str) -> list[str]:
        """Values, in all sections, that differ from the preset's: "samples = 24, not 6000"."""
        change_words = []
        for section_name, preset_keys in papers.sections(self.method.name, preset).items():
            if section_name == "method":
                method_options = self.method.model_extra or {}
                prefix = ""
            else:
                method_options = getattr(self, section_name).model_dump()
                prefix = f"{section_name}."
            for key, preset_value in preset_keys.items():
                if (stated_value := method_options.get(key, preset_value)) != preset_value:
                    change_words.append(f"{prefix}{key} = {_toml_word(stated_value)}, not {_toml_word(preset_value)}")
        return change_words

    @property
    def options(self) -> MethodOptions:
        """The method's own options, validated by the method's model of them."""
        method = methods.load(self.method.name)
        option_values = dict(self.method.model_extra or {})
        options: MethodOptions = configuration.validate(method.Options, option_values, "[method]", section="method.")
        return options


def load(path: Path, assignments: Iterable[str] = ()) -> Task:
    """Reads, overrides and validates a task file. Raises ConfigurationError for an invalid key, with its remedy."""
    file_data = configuration.read_toml(path)
    assignment_list = tuple(assignments)
    task_data, aside_names = for_its_method(
        file_data, configuration.override(file_data, assignment_list), assignment_list
    )
    for key in ("folder", "set_aside", "replaced"):
        if key in task_data:
            raise ConfigurationError(f"{path}: {key}: unknown key", "paths are relative to the task file or data.root")
    task_data, replaced_keys = for_its_preset(task_data, assignment_list)
    derived_fields = {"folder": path.parent.absolute(), "set_aside": aside_names, "replaced": replaced_keys}
    task = configuration.validate(Task, {**task_data, **derived_fields}, str(path))
    _ = task.options  # a wrong method option is found now, not when the method starts
    return task


def for_its_method(
    written: Mapping[str, Any], data: dict[str, Any], assignments: Iterable[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns ``data`` without the file's method options that do not fit the method in ``data``, and their names.

    The method in ``data`` may be another one than the file's, because an override named it.

    Options that both methods have under one name are kept, unless the value is invalid for the other method or an
    assignment asks for a preset, whose values then hold. What an assignment sets is never set aside: a wrong one is an
    error where the options are read.

    Args:
        written: the task file; ``data`` is the same with the assignments applied.
    """
    file_method = written.get("method")
    new_method = data.get("method")
    if (
        not isinstance(file_method, Mapping)
        or not isinstance(new_method, Mapping)
        or file_method.get("name") == new_method.get("name")
    ):
        return data, ()
    if new_method.get("name") not in methods.names():
        return data, ()  # Validation reports the unknown method.
    assigned_keys = {assignment.partition("=")[0].strip() for assignment in assignments}
    file_options = {key for key in file_method if key != "name" and f"method.{key}" not in assigned_keys}
    new_options = {key: value for key, value in new_method.items() if key not in file_options}
    carried_options = {
        key: new_method[key] for key in new_method if key in file_options and "preset" not in new_options
    }
    while carried_options and (faulty_names := _refused_options(str(new_method["name"]), new_options, carried_options)):
        carried_options = {key: value for key, value in carried_options.items() if key not in faulty_names}
    aside_names = tuple(key for key in new_method if key in file_options and key not in carried_options)
    return {**data, "method": {key: value for key, value in new_method.items() if key not in aside_names}}, aside_names


def for_its_preset(data: dict[str, Any], assignments: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns ``data`` with the values of its preset in the other sections than [method], and what they replaced.

    A preset goes before the task file and after an assignment. In [method] a key beside ``preset`` is a change of it.

    Args:
        data: the task file with the assignments applied.
    """
    method = data.get("method")
    if not isinstance(method, Mapping) or not method.get("preset") or method.get("name") not in methods.names():
        return data, ()
    try:
        sections = papers.sections(str(method["name"]), str(method["preset"]))
    except ValueError:
        return data, ()  # Validation of the method's options reports the unknown preset.
    assigned_keys = {assignment.partition("=")[0].strip() for assignment in assignments}
    preset_data = dict(data)
    replaced_keys = []
    for section_name, preset_keys in sections.items():
        section_values = data.get(section_name, {})
        if section_name == "method" or section_name in assigned_keys or not isinstance(section_values, Mapping):
            continue
        preset_values = {
            option_key: preset_value
            for option_key, preset_value in preset_keys.items()
            if f"{section_name}.{option_key}" not in assigned_keys
        }
        preset_data[section_name] = {**section_values, **preset_values}
        replaced_keys += [
            f"{section_name}.{key} = {_toml_word(value)}, not {_toml_word(section_values[key])}"
            for key, value in preset_values.items()
            if section_values.get(key, value) != value
        ]
    return preset_data, tuple(replaced_keys)


def _toml_word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _refused_options(name: str, new_options: Mapping[str, Any], carried_options: Mapping[str, Any]) -> set[str]:
    """Names of those carried options that the method refuses; of all where it refuses them together only."""
    options = methods.load(name).Options
    options_by_name = {key: value for key, value in new_options.items() if key != "name"}
    try:
        options.model_validate({**options_by_name, **carried_options})
    except ValidationError as error:
        refused_names = {str(item["loc"][0]) for item in error.errors(include_url=False) if item["loc"]}
        is_joint_fault = any(not item["loc"] for item in error.errors(include_url=False))
        return refused_names & set(carried_options) or (set(carried_options) if is_joint_fault else set())
    return set()
