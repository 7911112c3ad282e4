"""The script for machines with GPUs, on this one: every part runs, and what fails is told with its reason."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import gpu
from undersong_common.errors import ConfigurationError


@pytest.mark.slow
def test_every_part_runs_with_a_tiny_model(monkeypatch, capsys):
    pytest.importorskip("ray")
    monkeypatch.setattr(sys, "argv", ["gpu", "--texts", "10", "--tokens", "8", "--device", "cpu", "--json"])
    assert gpu.main() == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert {"transformers", "transformers over Ray", "tuning", "hidden states"} <= found["parts"].keys()
    assert found["parts"]["transformers over Ray"]["texts"] == 10
    assert found["parts"]["tuning"]["texts_after"] == 8
    assert found["usd"]["transformers"]["100000"] == pytest.approx(100 * found["usd"]["transformers"]["1000"])


@pytest.mark.slow
def test_a_part_that_cannot_run_says_why_and_the_exit_code_too(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "parts", lambda given: {"tuning": _refused})
    monkeypatch.setattr(sys, "argv", ["gpu", "--model", str(tmp_path)])
    assert gpu.main() == 1
    assert "does not fit; lower batch_size" in capsys.readouterr().out


def _refused():
    raise ConfigurationError("does not fit", "lower batch_size")
