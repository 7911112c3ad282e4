"""A run that goes on asks the sums that its parties signed, or is refused by their names."""

from __future__ import annotations

import dataclasses

from tests.doubles.bench import run_federated
from tests.doubles.coded import raises
from tests.doubles.parties import make_manifest, make_party
from tests.doubles.tasks import LABELS, make_task
from undersong.run.records import private_tables
from undersong.run.simulation import InProcess
from undersong_common.errors import ConfigurationError
from undersong_protocol.wire.public import MemoryBlocks
from undersong_server.database.journal import Journal
from undersong_server.runs.execution import RunParties
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load


def test_continuing_a_run_with_a_plan_that_was_not_signed_is_refused(tmp_path):
    task = load(make_task(tmp_path, parties=2), ["method.name=mixture+labels"])
    tables, planned = private_tables(task, 0), plan_run(task)
    parties = {name: make_party(tmp_path, name, table, blocks=MemoryBlocks()) for name, table in tables.items()}
    journal = Journal(tmp_path / "journal.sqlite")
    journal.put("manifest", make_manifest(planned.plan, parties, LABELS).to_bytes())
    journal.close()
    (labels,) = planned.plan.sums
    grown = dataclasses.replace(labels, parameters={**labels.parameters, "bins": 3})
    other = dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, sums=(grown,)))
    with raises(ConfigurationError, "other-plan") as refused:
        run_federated(task, other, tmp_path, tables, seed=0)
    assert refused.value.problem.endswith("than its task has now: labels")
    assert "plan a new run" in refused.value.remedy
    promise = dataclasses.replace(planned.plan.privacy, epsilon=planned.plan.privacy.epsilon / 2)
    other = dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, privacy=promise))
    with raises(ConfigurationError, "other-plan") as refused:
        run_federated(task, other, tmp_path, tables, seed=0)
    assert refused.value.problem.endswith(": its privacy")


def test_each_request_of_a_run_uses_the_timeout_of_its_parties(tmp_path):
    task = load(make_task(tmp_path, parties=2), ["method.name=mixture+labels"])
    waits_s = set()

    class Recorded(InProcess):
        def exchange(self, requests, *, timeout_s):
            waits_s.add(timeout_s)
            return super().exchange(requests, timeout_s=timeout_s)

    def reach(parties):
        return RunParties(Recorded(parties), list(parties), timeout_s=7.0)

    run_federated(task, plan_run(task), tmp_path, private_tables(task, 0), seed=0, reach=reach)
    assert waits_s == {7.0}
