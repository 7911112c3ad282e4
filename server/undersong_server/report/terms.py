"""Terms of a corpus (licence, source of the texts, contacts), in sentences that card, report and ``verify`` share."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from undersong_common.printable import joined, printable
from undersong_protocol.agreement import words

NGRAM = "ngram"
TRANSFORMERS = "transformers"
NAMES_ITS_MODEL = "openai"  # kind of generator of which the plan names the model
UNNAMED_SOURCES = {  # what no file says of the texts of a generator of each kind
    NGRAM: "The texts repeat phrases of the public corpus that {} learned from. Whose it is",
    TRANSFORMERS: "Which language model wrote the texts of {}",
}
UNNAMED_SOURCE = "Where the texts of {} come from"
RESERVED_DOMAIN = re.compile(  # RFC 2606
    r"(?:@|\.|//)(?:example|invalid|test|example\.(?:com|net|org))(?=[/,;)\s]|$)", re.IGNORECASE
)
# Ofcom's telephone numbers for drama, after the country's 44 or a leading 0; North America's 555-0100 to 555-0199.
RESERVED_NUMBER = re.compile(
    r"(?:440?|0)(?:(?:11[3-8]|1[2-6]1)4960|1914980|2079460|2896496|2920180|1632960|3069990|7700900|8081570|9098790)\d{3}"
    r"|1?\d{3}55501\d{2}"
)
NUMBER = re.compile(r"\+?\(?\d[\d ().-]{6,}\d")
NOBODY_TO_ASK = ", and nobody here can be asked"
STATED_SOURCE = "Source of the texts of {name}, as the makers state it: {statement}."
DEMONSTRATION = "This is a demonstration: by the makers' word alone, every record behind it is invented."
CONTACTS_ARE_EXAMPLES = (
    "Its contacts are examples: nobody here can be asked, and nothing shows that those who are named exist."
)
UNCONFIRMED_LICENCE = (
    "Yes, to try things out; no, for what you rely on, publish or sell: nobody here can confirm that the licence, {},"
    " is from those who are named. If it is, it lets you"
)
CORPUS_ALONE = "That is said of the corpus, and not of set-aside.jsonl: do not pass that file on."
UNTOLD = "Not told: no file of the corpus is here. Get one, and verify again."
OPEN_SOURCE = "publish no text, and no model that is trained on the texts"
LICENCE_UNCONFIRMED = ", but nobody here can confirm who gave it"
SOURCE_LICENCE_UNKNOWN = ", but the licence of the texts' source is not stated"
OPEN_INSIDE = "Use inside your organisation, and a model that others only query (hosted), depend on that licence, too."
PUBLISH = "publish the texts, changed texts, and models that you train on them"
OWN_WORDS = (
    "whether you may train on the texts, publish what comes of it, use it inside your organisation or host a model, it"
    " says itself."
)
USE_LIMITS = (
    "Advice, whatever a licence allows: the texts are for no decision about a patient, and no figure shows that they"
    " are fit for a product."
)
UNSTATED_INSIDE = "Nor have they stated if you may use it inside your organisation, or host a model trained on it."


@dataclass(frozen=True)
class Licence:
    """Permissions of a licence: to publish (the end of a sentence), and for internal and hosted use (sentences).

    ``url`` is that of a licence which has to be linked; "" for others.

    Source: the legal code of each Creative Commons licence, sections 2(a)(1) (reproducing and sharing), 3(a) (credit,
    link and a note of changes, for what is shared) and 3(b) (the same licence); section 2 of CC0 1.0.
    """

    publish: str
    inside: str
    url: str = ""


CREDIT = "if you give credit, link the licence and say if you changed the texts"
NO_CREDIT_INSIDE = "Use inside your organisation needs no credit, which is due for what is shared"
NO_WORD_ON_HOSTING = (
    "The licence does not name a model that others only query (hosted): whether that is sharing, which needs credit, it"
    " does not say, so give the credit there, too."
)
LICENCES = {  # terms on which the licences of most corpora let a receiver publish texts, and models trained on them
    "CC0-1.0": Licence(
        "also in a product that you sell, without credit",
        "Use inside your organisation, and a model that others only query (hosted), are free, too.",
    ),
    "CC-BY-4.0": Licence(
        f"also in a product that you sell, {CREDIT}",
        f"{NO_CREDIT_INSIDE}. {NO_WORD_ON_HOSTING}",
        "https://creativecommons.org/licenses/by/4.0/",
    ),
    "CC-BY-SA-4.0": Licence(
        "also in a product that you sell, if you give credit, link the licence, say if you changed the texts, and"
        " publish changed texts under the same licence",
        f"{NO_CREDIT_INSIDE}. {NO_WORD_ON_HOSTING}",
        "https://creativecommons.org/licenses/by-sa/4.0/",
    ),
    "CC-BY-NC-4.0": Licence(
        f"{CREDIT}, but not for money",
        f"{NO_CREDIT_INSIDE}, and is not for money either. {NO_WORD_ON_HOSTING}",
        "https://creativecommons.org/licenses/by-nc/4.0/",
    ),
}


def cite_licence(licence: str) -> str:
    """Returns a licence as credit names it: with its address if it has to be linked."""
    url = LICENCES[licence].url if licence in LICENCES else ""
    return f"{licence}, {url}" if url else licence


def is_example(address: str) -> bool:
    """True if a contact or address has a domain or telephone number that is reserved for examples or drama.

    >>> is_example("data@clinics.example"), is_example("https://a.example/triage, open"), is_example("a@test.com")
    (True, True, False)
    >>> is_example("Dr. Weller, +44 20 7946 0018"), is_example("+1 (212) 555-0142"), is_example("+44 20 7946 1018")
    (True, True, False)
    """
    numbers = (re.sub(r"\D", "", number) for number in NUMBER.findall(address))
    return any(map(RESERVED_NUMBER.fullmatch, numbers)) or bool(RESERVED_DOMAIN.search(address))


def mark_example(contact: str) -> str:
    """Returns a contact or address, marked if it is an example."""
    return f"{contact}; an example, which leads to nobody" if is_example(contact) else contact


@dataclass(frozen=True)
class TextSource:
    """Origin of the texts of a generator, by its name and kind, and by its makers' statement; "" if they make none."""

    name: str
    kind: str
    statement: str = ""

    @property
    def is_stated(self) -> bool:
        """True if the plan names a model, or its makers state whose texts the generator gives or learns from."""
        return bool(self.statement) or self.kind == NAMES_ITS_MODEL


@dataclass(frozen=True)
class CorpusTerms:
    """Facts from which a receiver is told what it may do with a corpus, and whom it can ask.

    Attributes:
        licence: as its makers state it; "" if they state none.
        contacts: the stated ones of makers and operator.
        sources: of the texts of each generator that wrote the corpus.
        invented_records: True if its makers state that every record is invented.
    """

    licence: str = ""
    contacts: tuple[str, ...] = ()
    sources: tuple[TextSource, ...] = ()
    invented_records: bool = False

    @property
    def whom_to_ask(self) -> str:
        """The first contact that reaches somebody; "the makers" if none is stated, "" if each is an example."""
        reachable_contacts = (contact for contact in self.contacts if not is_example(contact))
        return next(reachable_contacts, "" if self.contacts else "the makers")

    def ask(self, purpose: str = "") -> str:
        """Ends a sentence on what these files do not say: whom to ask, or that nobody can be asked.

        Args:
            purpose: follows whoever is asked, such as " before you publish the texts".
        """
        return f": ask {self.whom_to_ask}{purpose}" if self.whom_to_ask else NOBODY_TO_ASK

    def describe_demonstration(self) -> str:
        """Says that a corpus is a demonstration if its makers state that every record is invented; else ""."""
        if not self.invented_records:
            return ""
        return DEMONSTRATION if self.whom_to_ask else f"{DEMONSTRATION} {CONTACTS_ARE_EXAMPLES}"

    def quote_sources(self) -> tuple[str, ...]:
        """Returns a sentence on the source that the makers state of each generator's texts."""
        return tuple(
            STATED_SOURCE.format(name=source.name, statement=source.statement.rstrip("."))
            for source in self.sources
            if source.statement
        )

    def name_sources(self) -> str:
        """Says of which generators these files do not name the source of the texts, and its licence; else ""."""
        names_by_words: dict[str, list[str]] = {}
        for source in self.sources:
            if not source.is_stated:
                names_by_words.setdefault(UNNAMED_SOURCES.get(source.kind, UNNAMED_SOURCE), []).append(source.name)
        return " ".join(
            f"{source_words.format(joined(names))} and under which licence, these files do not say{self.ask()}."
            for source_words, names in names_by_words.items()
        )

    def allow(self) -> str:
        """Answers first with Yes, No or Not until if a receiver may publish texts, or models trained on them."""
        if self.name_sources():
            opening = f"No, as it stands: {OPEN_SOURCE}, since the licence of their source is not known."
            if self.whom_to_ask:
                opening = f"Not until the licence of their source is known to you: {OPEN_SOURCE}, before that."
            return f"{opening} {OPEN_INSIDE} {self._allow_then()}"
        if not self.licence:
            opening = "Not until its makers state a licence" if self.whom_to_ask else "No, as it stands"
            return f"{opening}: its makers {self._lack_licence()} {UNSTATED_INSIDE}"
        if self.licence not in LICENCES:
            return f"Not until you have read its licence, {self.licence}: {OWN_WORDS}"
        licence = LICENCES[self.licence]
        opening = f"Yes, by the licence, {self.licence}: it lets you"
        if not self.whom_to_ask:
            opening = UNCONFIRMED_LICENCE.format(self.licence)
        return f"{opening} {PUBLISH}, {licence.publish}. {licence.inside}"

    @property
    def hub_licence(self) -> str:
        """The licence in the words of a hub's metadata, which nobody can take for one that is known to be given."""
        if self.licence and self.name_sources():
            return f"{self.licence}{SOURCE_LICENCE_UNKNOWN}"
        return f"{self.licence}{LICENCE_UNCONFIRMED if self.licence and not self.whom_to_ask else ''}"

    def _allow_then(self) -> str:
        """Says what the corpus's own licence allows once that of the source is known."""
        if not self.licence:
            return f"For the corpus itself its makers {self._lack_licence()}"
        if self.licence not in LICENCES:
            return f"The corpus's own licence is {self.licence}: {OWN_WORDS}"
        verb = "then lets" if self.whom_to_ask else "would let"
        return f"The corpus's own licence, {self.licence}, {verb} you {PUBLISH}, {LICENCES[self.licence].publish}."

    def _lack_licence(self) -> str:
        return f"have stated no licence{self.ask(' before you use or pass on the texts')}."


def kind_of(writer: str) -> str:
    """Returns the kind of a generator by a plan's words on it, as :class:`CorpusTerms` tells kinds apart.

    >>> kind_of("big (model-1 at an endpoint)"), kind_of("pool (texts that were written before)")
    ('openai', 'replay')
    """
    _, kind_words = words.split_writer(writer)
    kind_by_words: Mapping[str, str] = {
        words.NGRAM_WRITER: NGRAM,
        words.LOCAL_MODEL_WRITER: TRANSFORMERS,
        words.WRITTEN_BEFORE: "replay",
    }
    if kind_words in kind_by_words:
        return kind_by_words[kind_words]
    is_program = not kind_words or kind_words.endswith((words.OF_ANOTHER_PACKAGE, words.OF_THIS_PROCESS))
    return "function" if is_program else NAMES_ITS_MODEL


def terms_of_plan(
    task: Mapping[str, object],
    authors: Sequence[str],
    *,
    invented_records: bool = False,
    statements: Mapping[str, str] = MappingProxyType({}),
) -> CorpusTerms:
    """Returns the terms by the words of a plan that hospitals have signed, and of a card, which no hospital signs.

    Args:
        task: the plan's words on the task; authors: generators that wrote the corpus, all of the plan's if empty.
        invented_records: the card states it; statements: those of the card on the source of each generator's texts.
    """
    publication_words = str(task.get("publication") or "")
    contacts = (words.publication_part(publication_words, "contact"), str(task.get("contact") or ""))
    generators = task.get("generators")
    writers = [str(writer) for writer in generators] if isinstance(generators, list | tuple) else []
    kind_by_name = {words.split_writer(writer)[0]: kind_of(writer) for writer in writers}
    return CorpusTerms(
        licence=printable(words.publication_part(publication_words, "licence"), 200),
        contacts=tuple(printable(contact, words.LONGEST_FOREIGN) for contact in contacts if contact),
        sources=tuple(
            TextSource(printable(name, words.LONGEST_FOREIGN), kind, printable(statements.get(name, ""), 500))
            for name, kind in kind_by_name.items()
            if not authors or name in authors
        ),
        invented_records=invented_records,
    )
