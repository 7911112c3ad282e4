"""Orders of a method, and the requests that they become."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from undersong_common.canonical import tagged_hash
from undersong_server.generators.cleaning import duplicate_key
from undersong_server.generators.interface import GenerationRequest, PromptFormat
from undersong_server.prompts.rendering import MASK_RATE, Prompt, Prompts, PromptTexts, Style, fit_prompt

DrawWords = Callable[[Random], int]  # draws the length of a text, in words

FEWEST_CONTINUED = 3  # good examples that a completion shows, or none: a base model copies a single one word for word


@dataclass(frozen=True)
class Order:
    """One text that a method wants written. Example texts are synthetic or public, never private.

    Attributes:
        generator: name of the generator that is to write the text.
        kind, label, good, bad, parents, terms, words, bounded, steering, mask_rate: as in a GenerationRequest.
        good_terms: the terms that each of the good examples contains, in their order; () if they are not known.
        named: False hides the label from the generator: the sample has it, the prompt and the request do not.
        bad_reason: fault of the bad examples: far from real texts, or of another label than they bear.
        good_for_bad: further good examples for a completion that shows no bad ones.
        attributes: names and values that the sample gets; a prompt shows them only if ``terms`` has them too.
        bad_continued: True shows bad examples in completions too; a model that only continues may write more of them.
        hints: number that decides the prompt's hints and length: orders that are otherwise equal have the same prompt
            if they have the same number, at every attempt. None gives every order of a batch its own.
    """

    generator: str
    kind: str
    label: str = ""
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    words: int | None = None
    bounded: bool = False
    named: bool = True
    good_terms: tuple[tuple[str, ...], ...] = ()
    bad_reason: Literal["far", "mislabelled"] = "far"
    good_for_bad: tuple[str, ...] = ()
    bad_continued: bool = False
    attributes: tuple[tuple[str, str], ...] = ()
    steering: tuple[float, ...] = ()
    hints: int | None = None
    mask_rate: float = MASK_RATE


@dataclass
class Requests:
    """Turns the orders of one run into requests with rendered prompts.

    Attributes:
        formats: form of prompts by generator; one without an entry reads prompts and follows instructions.
        draw_words: draws the length of a text whose order names none; None leaves it to the generator.
    """

    prompts: Prompts
    formats: Mapping[str, PromptFormat]
    seed: int
    draw_words: DrawWords | None = None

    def make(
        self, step: str, orders: Sequence[Order], order_numbers: Sequence[int], length_factors: Sequence[int]
    ) -> tuple[dict[int, GenerationRequest], list[int]]:
        """Makes the requests for the orders at ``order_numbers`` of a batch, no two of them with the same hints.

        Args:
            step: differs in every batch and every attempt.
            length_factors: how many times the usual length each order's answer may have.

        Returns:
            The requests by number, and the numbers of those that show less than was ordered.
        """
        first_hint = int.from_bytes(self._digest_parts("hints", step)[:7], "little")
        wanted_texts = {
            order_number: shown_once(orders[order_number], self.form_of(orders[order_number].generator).style)
            for order_number in order_numbers
        }
        requests = {
            order_number: self._make_request(
                step,
                order_number,
                first_hint + order_number,
                orders[order_number],
                wanted_texts[order_number],
                length_factors[order_number],
            )
            for order_number in order_numbers
        }
        shown_texts = {
            order_number: PromptTexts(order.good, order.bad, order.parents) for order_number, order in requests.items()
        }
        return requests, [
            order_number for order_number in order_numbers if shown_texts[order_number] != wanted_texts[order_number]
        ]

    def _make_request(
        self,
        step: str,
        order_number: int,
        hint_number_of_order: int,
        order: Order,
        shown: PromptTexts,
        length_factor: int,
    ) -> GenerationRequest:
        label = ""
        if order.named:
            label = order.label
        seed = int.from_bytes(self._digest_parts("request", step, str(order_number))[:7], "little")
        word_seed, hint_number = seed, hint_number_of_order
        if order.hints is not None:
            word_seed = hint_number = order.hints
        word_count = order.words
        if word_count is None and self.draw_words is not None:
            word_count = self.draw_words(Random(f"words {word_seed}"))
        prompt_format = self.form_of(order.generator)
        prompt = Prompt("", "")
        if prompt_format.rendered:
            prompt, shown = fit_prompt(
                lambda shown: self.prompts.render(
                    order.kind,
                    style=prompt_format.style,
                    number=hint_number,
                    label=label,
                    good=shown.good,
                    good_terms=_terms_of(order, shown.good),
                    bad=shown.bad,
                    bad_reason=order.bad_reason,
                    parents=shown.parents,
                    terms=order.terms,
                    words=word_count,
                    mask_rate=order.mask_rate,
                ),
                shown,
                prompt_format.prompt_tokens,
            )
        return GenerationRequest(
            kind=order.kind,
            label=label,
            prompt=prompt.user,
            seed=seed,
            good=shown.good,
            bad=shown.bad,
            parents=shown.parents,
            terms=order.terms,
            words=word_count,
            bounded=order.bounded,
            system=prompt.system,
            style=prompt_format.style,
            stop=prompt.stop,
            told=prompt.told,
            room=length_factor,
            steering=order.steering,
            mask_rate=order.mask_rate,
        )

    def form_of(self, generator: str) -> PromptFormat:
        """Returns the form of a generator's prompts."""
        return self.formats.get(generator, PromptFormat())

    def _digest_parts(self, tag: str, *parts: str) -> bytes:
        return tagged_hash(tag, str(self.seed).encode(), *(part.encode() for part in parts))


def shown_once(order: Order, style: Style = "chat") -> PromptTexts:
    """Returns the texts that the order shows, each once: a good example is no bad one.

    A completion shows further good examples in place of the bad ones, unless the order has bad ones continued. It shows
    none if there are too few, unless the order says what each of them contains.

    >>> shown_once(Order("g", "contrast", good=("a", "b"), bad=("A!", "c")))
    PromptTexts(good=('a', 'b'), bad=('c',), parents=())
    >>> order = Order("g", "contrast", good=("a", "b"), bad=("c",), good_for_bad=("d",))
    >>> shown_once(order, "completion")
    PromptTexts(good=('a', 'b', 'd'), bad=(), parents=())
    >>> shown_once(Order("g", "contrast", good=("a", "b")), "completion").good
    ()
    """
    order_good, order_bad = order.good, order.bad
    if style == "completion" and not (order.bad_continued and order.bad):
        order_good, order_bad = order.good + order.good_for_bad, ()
    good_by_key: dict[str, str] = {}
    for text in order_good:
        good_by_key.setdefault(duplicate_key(text), text)
    shown_count = len(good_by_key) + len(order_bad)
    if style == "completion" and shown_count < FEWEST_CONTINUED and not order.good_terms:
        return PromptTexts(parents=order.parents)
    bad_by_key: dict[str, str] = {}
    for text in order_bad:
        if duplicate_key(text) not in good_by_key:
            bad_by_key.setdefault(duplicate_key(text), text)
    return PromptTexts(tuple(good_by_key.values()), tuple(bad_by_key.values()), order.parents)


def _terms_of(order: Order, shown_texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the terms of each shown example, with commas between them; those that a shortened example still has."""
    if order.good_terms:
        terms_by_example = list(zip(order.good, order.good_terms, strict=True))
    else:
        terms_by_example = []
    terms_by_text = [
        (text, next(terms for full_text, terms in terms_by_example if full_text.startswith(text)))
        for text in shown_texts
        if terms_by_example
    ]
    return tuple(
        ", ".join(term for term in terms if term.casefold() in text.casefold()) for text, terms in terms_by_text
    )
