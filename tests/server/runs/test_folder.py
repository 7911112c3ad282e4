"""What an operator's task becomes for a federation, and what is refused before anybody is asked."""

from __future__ import annotations

from tests.doubles.coded import raises
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_common.program import configuration
from undersong_server.runs import planning
from undersong_server.runs.planning import coordinator_task


def test_plan_for_which_no_safe_mask_graph_exists_is_refused(tmp_path):
    data = configuration.read_toml(make_task(tmp_path))
    roster = [f"p{number:03}" for number in range(201)]
    infeasible = {**data, "federation": {"tolerated_dropouts": 20, "colluders": 150}}
    with raises(ConfigurationError, "no-neighbourhood") as refused:
        planning.plan_run(coordinator_task(infeasible, tmp_path, roster))
    assert "federation.colluders" in refused.value.remedy
    planning.plan_run(coordinator_task(data, tmp_path, roster))
