"""A text's bits on the kernels of this processor, in every order, thread and company; and without each protection."""

import json
import os
import subprocess
import sys

import pytest

from tools import kernels

pytestmark = pytest.mark.heavy

THREADS = os.environ.get("UNDERSONG_TEST_THREADS", "2")
SHORT = ("--longest", "20")  # words: two seconds of processor time
KERNELS_WITH_PLACES = {"Haswell", "Zen"}  # whose kernels treat places of a product differently


def count_changes(texts, *options, kernel=None, threads=THREADS):
    """Number of texts whose bits change, by condition, in a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    if kernel is not None:
        environment["OPENBLAS_CORETYPE"] = kernel
    command = [sys.executable, "-m", "tests.doubles.embedding_matrix", "--texts", str(texts), *options]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command, cwd=kernels.ROOT, env=environment, capture_output=True, text=True, timeout=1100, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert len(counts) == 7
    return counts


@pytest.mark.slow
def test_some_texts_embed_to_the_same_bits_beside_any_others():
    assert not any(count_changes(6, *SHORT).values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("threads", "texts"), [("1", 150), ("2", 150), *((threads, 50) for threads in "3456")])
@pytest.mark.parametrize("kernel", kernels.kernels())
def test_many_texts_embed_to_the_same_bits_beside_any_others(kernel, threads, texts):
    assert not any(count_changes(texts, kernel=kernel, threads=threads).values())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", sorted(KERNELS_WITH_PLACES & set(kernels.kernels())))
def test_embedding_bits_change_if_kernel_treats_matrix_places_differently(kernel):
    counts = count_changes(8, "--longest", "40", "--without", "places", kernel=kernel)
    assert min(counts["among others"], counts["in another order"], counts["in three threads"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_embedding_bits_change_in_a_second_thread_without_a_thread_owner():
    counts = count_changes(8, "--without", "owner", threads="2")
    assert max(counts["in a second thread"], counts["alone in a second thread"], counts["in three threads"]) > 0
