"""Columns beside the text: declared and sealed with the data set, and missed by name where a run asks for others."""

import json

import pytest

from tests.doubles.party_home import command, set_up
from undersong_client.home import PartyHome
from undersong_client.records import cautions
from undersong_client.storage import datasets
from undersong_common.errors import PrivacyRefusal
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics.histogram import AttributeMarginals


def plan_columns(columns):
    asked = SumRequest("marginals", AttributeMarginals(0, columns=(3,)))
    plan = plan_sums([asked], Privacy(2.0, 1e-5), Quorum(1, 1, 0, 0))
    task = {"name": "t", "labels": [], "columns": columns}
    return Manifest("first", task, "attributes", "00" * 32, (Member("alpha", bytes(range(32))),), plan)


@pytest.fixture
def home(tmp_path):
    rows = [{"text": f"note {n}", "Geschlecht": value} for n, value in enumerate(("w", " m ", None))]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    set_up(tmp_path / "home", ("init", "alpha"))
    command("data", "add", tmp_path / "notes.jsonl", "--attribute", "sex=Geschlecht", "--home", tmp_path / "home")
    return PartyHome(tmp_path / "home")


def test_column_is_sealed_under_the_name_of_its_declared_attribute(home):
    data = datasets.load(home)
    assert data.table.columns == {"sex": ("w", "m", "")}
    assert home.settings.attribute_fields == {"sex": "Geschlecht"}
    assert datasets.changed_since(home) == ""


def test_column_that_a_run_asks_for_and_the_data_lack_gives_a_caution(home):
    data = datasets.load(home)
    assert cautions.of_manifest(plan_columns(["sex"]), data) == []
    (found,) = cautions.of_manifest(plan_columns(["sex", "age"]), data)
    assert "'age'" in found


@pytest.mark.parametrize("columns", ["sex", [7], ["a\u202eb"], ["x"] * 100_000])
def test_manifest_with_unreadable_column_names_is_refused(columns):
    with pytest.raises(PrivacyRefusal):
        Manifest.from_bytes(plan_columns(columns).to_bytes())


@pytest.mark.parametrize("given", ["sex", "=x", "sex="])
def test_an_attribute_without_its_column_is_refused(home, given):
    command("data", "add", home.path / "x", "--attribute", given, "--home", home.path, code=None)
    assert home.settings.attribute_fields == {"sex": "Geschlecht"}
