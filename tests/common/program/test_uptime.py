"""Moments whose distance no clock changes, as long as the machine runs."""

from pathlib import Path

import pytest

from undersong_common.program import uptime
from undersong_common.program.uptime import Instant, instant

DAY_S = 86400.0


@pytest.mark.parametrize("clock_s", [-400 * DAY_S, 0.0, 25 * 3600.0])
def test_elapsed_time_within_one_boot_ignores_the_clock(clock_s):
    assert Instant(1e9, "a", 50.0).passed_s(Instant(1e9 + clock_s, "a", 60.0)) == 10.0


@pytest.mark.parametrize("boot", ["", "b"])
def test_elapsed_time_after_a_restart_follows_the_clock(boot):
    assert Instant(1e9, boot, 5000.0).passed_s(Instant(1e9 + 7.0, "a" * bool(boot), 3.0)) == 7.0


def test_instant_is_read_from_boot_id_and_uptime(tmp_path, monkeypatch):
    for name, text in (("BOOT_FILE", "start-1\n"), ("UPTIME_FILE", "12.50 3.00\n")):
        monkeypatch.setattr(uptime, name, tmp_path / name)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert instant(lambda: 5.0) == Instant(5.0, "start-1", 12.5)


@pytest.mark.parametrize("text", [None, "", "x y"])
def test_elapsed_time_without_an_uptime_follows_the_clock(tmp_path, monkeypatch, text):
    monkeypatch.setattr(uptime, "UPTIME_FILE", Path(tmp_path / "uptime"))
    if text is not None:
        (tmp_path / "uptime").write_text(text, encoding="ascii")
    assert instant(lambda: 5.0) == Instant(5.0)
