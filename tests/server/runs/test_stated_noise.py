"""[privacy] noise_multiplier in place of epsilon: the plan has that noise and states the epsilon that follows."""

import tomllib

import pytest

from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_server.runs.planning import coordinator_task, plan_figures, plan_run
from undersong_server.runs.task import load


def task_with_noise(folder, multiplier, *changes):
    path = make_task(folder)
    lines = [
        f"noise_multiplier = {multiplier}" if line.startswith("epsilon") else line
        for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path, load(path, changes)


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 9.69])
def test_plan_with_a_given_noise_multiplier_states_its_epsilon(tmp_path, multiplier):
    _, task = task_with_noise(tmp_path, multiplier)
    run = plan_run(task)
    assert [planned.sigma / planned.l2 for planned in run.plan.sums] == pytest.approx([multiplier] * 2, rel=1e-9)
    exact = accounting.epsilon([accounting.Gaussian(multiplier, count=2)], task.privacy.delta)
    assert exact * (1 - 1e-4) <= run.plan.privacy.epsilon <= exact * 1.01 + 1e-4
    assert run.task.privacy.epsilon == run.setting.privacy.epsilon == plan_figures(run).to_json()["epsilon"]


def test_coordinator_plan_uses_the_given_noise_multiplier(tmp_path):
    path, task = task_with_noise(tmp_path, 3.0)
    data = {key: value for key, value in tomllib.loads(path.read_text(encoding="utf-8")).items() if key != "federation"}
    roster = tuple(f"site-{number}" for number in range(task.quorum().parties))
    plan = plan_run(coordinator_task(data, tmp_path, roster)).plan
    assert plan.sums == plan_run(task).plan.sums
    assert plan.privacy.epsilon == plan_run(task).plan.privacy.epsilon


def test_noise_multiplier_beside_epsilon_or_a_preset_is_refused(tmp_path):
    path, _ = task_with_noise(tmp_path, 3.0)
    with pytest.raises(ConfigurationError, match="noise_multiplier"):
        load(path, ["privacy.epsilon=4.0"])
    with pytest.raises(ConfigurationError, match=r"votes/1 has a noise of its own"):
        plan_run(load(path, ["method.preset=paper"]))
    with pytest.raises(ConfigurationError, match="no private sum"):
        plan_run(load(path, ["method.name=mixture"]))
