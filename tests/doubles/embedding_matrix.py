"""Embeds the same texts in every order, in several threads and beside products; counts texts whose bits change.

    python -m tests.doubles.embedding_matrix --texts 500 [--without places|owner]

It prints one JSON object: the number of changed texts by condition. The number of library threads and the kernel are
those of the environment. ``--without`` takes one protection out, and the count then has to be above zero where the
kernel or the number of threads needs that protection.
"""

import argparse
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from undersong_common.arrays import Float32
from undersong_common.models import numpy_bert, places
from undersong_common.models.embedding import CachedEmbedder, Embedder, MemoryCache
from undersong_common.program import library_threads

WORDS = ("chest", "pain", "since", "yesterday", "card", "lost", "the", "of", "was", "1987", "mg", "no", "cough", "left")
PRODUCT = 700  # rows and columns of the products beside which texts are embedded


def some_texts(count: int, longest: int) -> list[str]:
    """Texts of 1 to ``longest`` words, short ones more often; no two are equal."""
    rng = np.random.default_rng(5)
    lengths = np.exp(rng.uniform(0, np.log(longest), count)).astype(int)
    return [f"{number} " + " ".join(rng.choice(WORDS, length)) for number, length in enumerate(lengths)]


def without_places() -> None:
    """Lets tokens stand at every place of a product, also where a kernel treats places differently."""
    every = places.Places(places.tokens_by_features, 0, places.TOKENS, 1)
    vars(numpy_bert)["like_places"] = lambda _layers: every


def without_owner() -> None:
    """Limits library threads in the process's first thread only, as threadpoolctl by itself does."""
    enter = library_threads.LibraryThreads.enter
    leave = library_threads.LibraryThreads.leave

    def in_first_thread(function: Callable[..., None]) -> Callable[..., None]:
        def limited(owner: library_threads.LibraryThreads, **options: bool) -> None:
            if threading.current_thread() is threading.main_thread():
                function(owner, **options)

        return limited

    library_threads.LibraryThreads.enter = in_first_thread(enter)  # type: ignore[method-assign]
    library_threads.LibraryThreads.leave = in_first_thread(leave)  # type: ignore[method-assign]


PROTECTIONS = {"places": without_places, "owner": without_owner}


def count_changed_rows(texts: Sequence[str], rows: Float32, expected: dict[str, bytes]) -> int:
    return sum(row.tobytes() != expected[text] for text, row in zip(texts, rows, strict=True))


def in_threads(count: int, work: Callable[[int], int]) -> int:
    """The sum of what ``work`` returns in so many threads at once."""
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(work, range(count)))


@contextmanager
def beside_products() -> Iterator[None]:
    """Another thread computes large products, with as many library threads as it likes."""
    ended = threading.Event()
    factor = np.random.default_rng(0).standard_normal((PRODUCT, PRODUCT), dtype=np.float32)

    def multiply() -> None:
        while not ended.is_set():
            factor @ factor

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(texts: list[str]) -> dict[str, int]:
    """Number of texts with other bits than alone, by condition."""
    embedder = Embedder.load()
    expected = {text: embedder.encode([text])[0].tobytes() for text in texts}
    rng = np.random.default_rng(7)

    def shuffled() -> list[str]:
        return [texts[number] for number in rng.permutation(len(texts))]

    def embed(order: Sequence[str], by: Embedder = embedder) -> int:
        return count_changed_rows(order, by.encode(order), expected)

    cached = CachedEmbedder(embedder, MemoryCache())
    cold = cached.encode(texts)
    half = shuffled()[: len(texts) // 2]
    warm = CachedEmbedder(embedder, MemoryCache())
    warm.encode(half)
    counts = {
        "among others": embed(texts),
        "in another order": embed(shuffled()),
        "in a second thread": in_threads(1, lambda _: embed(shuffled())),
        "in three threads": in_threads(3, lambda _: embed(texts, Embedder.load())),
        "with a warm cache": int((warm.encode(texts) != cold).any(axis=1).sum()),
        "alone in a second thread": in_threads(1, lambda _: sum(embed([text]) for text in half)),
    }
    with beside_products():
        counts["beside products"] = embed(shuffled())
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--longest", type=int, default=400, help="words of the longest text, at most")
    parser.add_argument("--without", choices=PROTECTIONS)
    arguments = parser.parse_args()
    if arguments.without:
        PROTECTIONS[arguments.without]()
    print(json.dumps(measure(some_texts(arguments.texts, arguments.longest))))


if __name__ == "__main__":
    main()
