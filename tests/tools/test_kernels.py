"""The rows of kernels that are run."""

import pytest

from tools import kernels


def test_names_of_one_blas_kernel_share_a_row_of_the_kernel_table(monkeypatch):
    taken = {"Nehalem": ("Nehalem",), "Haswell": ("Haswell",), "Zen": ("Haswell",)}
    monkeypatch.setattr(kernels, "kernels", lambda table=taken: list(table))
    monkeypatch.setattr(kernels, "taken_kernels", taken.__getitem__)
    distinct = kernels.distinct_kernels()
    assert distinct == {"Nehalem": [], "Haswell": ["Zen"]}
    names = [name for name, environment, _ in kernels.rows(distinct) if "OPENBLAS_CORETYPE" in environment]
    assert len(names) == 2 * len(kernels.THREADS)


@pytest.mark.slow
def test_numeric_libraries_compute_with_the_named_blas_kernel():
    if "Nehalem" not in kernels.kernels():
        pytest.skip("no processor of x86-64")
    assert kernels.taken_kernels("Nehalem") == ("Nehalem",)
