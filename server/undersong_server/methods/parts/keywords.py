"""Keywords of each label from a generator's answers: lists that it wrote, or the distinctive words of its texts."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence

from undersong_server.generators.reading import listed

SHORTEST_LETTERS = 4  # of a distinctive word, which "the" and "is" are not

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


def keywords(answers: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """At most ``most`` different keywords of each label, from what was answered for it.

    A language model answers with a list. The embedded generators follow no instructions and answer with texts of the
    label: keywords are then the words that are frequent in its texts and rare in the others' (tf-idf over labels).

    >>> keywords([["card lost, card stolen, PIN blocked"], ["my transfer is late", "a late transfer"]], 2)
    [['card lost', 'card stolen'], ['late', 'transfer']]
    """
    texts: list[list[str]] = []
    lists: list[list[str]] = []
    for given in answers:
        texts.append([])
        lists.append([])
        for answer in given:
            items = listed(answer)
            if items:
                lists[-1] += items
            else:
                texts[-1].append(answer)
    return [_different([*items, *words], most) for items, words in zip(lists, _distinctive(texts, most), strict=True)]


def keywords_by_label(answers: Sequence[str], labels: Sequence[str], most: int) -> list[list[str]]:
    """At most ``most`` keywords of each label from answers that hold one JSON object of lists; no two labels share one.

    >>> keywords_by_label(['Sure: {"a card": ["lost", "Stolen"], "fee": ["lost", "yearly"]}'], ["a_card", "fee"], 9)
    [['lost', 'Stolen'], ['yearly']]
    """
    found: list[list[str]] = [[] for _ in labels]
    numbers = {_folded(label): number for number, label in enumerate(labels)}
    taken: set[str] = set()
    for answer in answers:
        try:
            values = json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
        except ValueError:
            continue
        for label, items in values.items():
            number = numbers.get(_folded(label), -1)
            for item in items if number >= 0 and isinstance(items, list) else ():
                if isinstance(item, str) and item.casefold() not in taken and len(found[number]) < most:
                    taken.add(item.casefold())
                    found[number].append(item)
    return found


def _folded(label: str) -> str:
    return label.replace("_", " ").strip().casefold()


def _distinctive(texts: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    counted = [Counter(word for text in own for word in set(_words(text))) for own in texts]
    labels_with = Counter(word for counts in counted for word in counts)

    def rank(counts: Counter[str], word: str) -> tuple[float, str]:
        return -counts[word] * math.log((1 + len(texts)) / labels_with[word]), word

    return [sorted(counts, key=lambda word, counts=counts: rank(counts, word))[:most] for counts in counted]  # type: ignore[misc]


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if len(word) >= SHORTEST_LETTERS]


def _different(items: Sequence[str], most: int) -> list[str]:
    found: dict[str, str] = {}
    for item in items:
        found.setdefault(item.casefold(), item)
    return list(found.values())[:most]
