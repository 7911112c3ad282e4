"""No product or decomposition of ours runs with several library threads: the number is read inside the calls."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Each computation runs in a pool of threads, twice at once, in a process whose libraries have three threads.
SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, scipy.linalg
import sklearn.cluster, sklearn.linear_model
from threadpoolctl import threadpool_info, threadpool_limits
from undersong_common.models import numpy_bert, hidden_states
from undersong_common.models.embedding import Embedder, quantise
from undersong_protocol.statistics import nearest, teachers
from undersong_server import learning
from undersong_server.methods import augpe, undersong
from undersong_server.methods.parts import selection

threadpool_limits(3)
seen = {}

def watch(module, name):
    function = getattr(module, name)
    def watched(*arguments, **options):
        number = max(library["num_threads"] for library in threadpool_info())
        seen.setdefault((module.__name__, name), set()).add(number)
        return function(*arguments, **options)
    setattr(module, name, watched)

for module, name in (
    (np.linalg, "eigh"), (np.linalg, "svd"), (sklearn.linear_model.LogisticRegression, "fit"),
    (sklearn.cluster.MiniBatchKMeans, "fit"), (numpy_bert, "_gelu"), (nearest, "_double_records"),
    (learning, "fit_linear"), (selection, "herded"),
    (teachers, "logistic"),
):
    watch(module, name)

rng = np.random.default_rng(0)
x = quantise(rng.standard_normal((200, 24)))
y = rng.integers(0, 3, 200)
texts = [f"text {number} of label {label}" for number, label in enumerate(y)]
embedder = Embedder.load()

class Centres:
    natural, sigma = rng.standard_normal(3 * 24), 1.0

def votes():
    compared = nearest.NearestFurthest(x, None, 4)
    compared.extend(x[::-1].copy(), None)

computations = [
    lambda: embedder.encode(texts[:40]),
    votes,
    lambda: undersong.by_centres(Centres, np.bincount(y) * 1.0, x, y, np.zeros(3, bool)),
    lambda: selection.herded_by_label(x.astype(np.float64), y, np.zeros((3, 24)), np.array([9, 9, 9])),
    lambda: undersong.word_classifier(undersong.word_rows(texts), y, 3),
    lambda: augpe.cells_of(x, 4, 0),
    lambda: learning.classifier(x, y, 3, strength=1.0),
    lambda: hidden_states._axes(x.astype(np.float64), 8),
    lambda: teachers.votes(x, y, y, x, y, x, y, teachers=3, class_count=3, half=True),
]
with ThreadPoolExecutor(4) as pool:
    for waiting in [pool.submit(computation) for computation in computations * 2]:
        waiting.result()
assert len(seen) == 9, seen
assert all(numbers == {1} for numbers in seen.values()), seen
assert {library["num_threads"] for library in threadpool_info()} == {3}
"""


def test_products_and_decompositions_run_with_one_library_thread() -> None:
    several = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3")}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=200, env=several)
