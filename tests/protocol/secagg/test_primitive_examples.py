"""The examples in the primitives' docstrings are true."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from undersong_common.privacy import noise, stream
from undersong_protocol.secagg import graph, noise_share, ring


@pytest.mark.parametrize("module", [stream, noise, ring, graph, noise_share], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
