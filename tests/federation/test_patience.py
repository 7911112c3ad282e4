"""How long a run waits, for whom, and what the operator can do meanwhile."""

from __future__ import annotations

import pytest

from tests.doubles.alliance import before_the_first_sum
from undersong_common.errors import ConfigurationError, PrivacyRefusal

pytestmark = pytest.mark.heavy


@pytest.mark.slow
def test_watch_command_ends_when_its_run_is_stopped(alliance, monkeypatch):
    before_the_first_sum(monkeypatch, lambda: alliance.operator("run", "stop", "halted"))
    alliance.start("halted")
    assert "stopped" in alliance.watch("halted", code=PrivacyRefusal.exit_code)
    alliance.operator("run", "resume", "halted", code=ConfigurationError.exit_code)
