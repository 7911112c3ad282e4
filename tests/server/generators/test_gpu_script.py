"""The script for machines with GPUs, on this one: every part runs, and what fails is told with its reason."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import gpu


@pytest.mark.slow
def test_gpu_benchmark_runs_every_part_with_a_tiny_model(monkeypatch, capsys):
    pytest.importorskip("ray")
    monkeypatch.setattr(sys, "argv", ["gpu", "--texts", "10", "--tokens", "8", "--device", "cpu", "--json"])
    assert gpu.main() == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert {"transformers", "transformers over Ray", "tuning", "hidden states"} <= found["parts"].keys()
    assert found["parts"]["transformers over Ray"]["texts"] == 10
    assert found["parts"]["tuning"]["texts_after"] == 8
    assert found["usd"]["transformers"]["100000"] == pytest.approx(100 * found["usd"]["transformers"]["1000"])
