"""A rehearsal: both sides set up by their own people, marked everywhere, and of no way to turn a real run into one."""

import json

import pytest

from tests.doubles.party_home import write_notes
from tests.trial.stranger import started
from tests.trial.test_life import Life, fingerprint, run_once
from undersong_client.home import Declared, PartyHome
from undersong_client.operations import data, joining
from undersong_client.storage.addition import AdditionOptions
from undersong_common.errors import ConfigurationError
from undersong_common.program import drill
from undersong_protocol.wire.messages import federation_pb2, secagg_pb2
from undersong_server.defaults import NewCoordinator
from undersong_server.operations import coordinator, runs
from undersong_server.runs import task as tasks

PARTIES = ("alpha", "beta", "gamma")


@pytest.mark.heavy
def test_drill_of_a_hospital_has_other_keys_and_only_invented_records(tmp_path):
    made, other = (joining.create(tmp_path / name, "alpha", drill=True) for name in ("home", "other"))
    assert joining.own_fingerprint(made) != joining.own_fingerprint(other)
    assert made.drill_records.read_bytes() != other.drill_records.read_bytes()
    invented = Declared(str(made.drill_records), "text", "label", "keeper")
    assert data.add(made.path, invented, checkpoints=tmp_path / "heads").survey.records == joining.DRILL_RECORDS
    notes, newer = write_notes(tmp_path / "real.jsonl"), AdditionOptions(new_version=True)
    with pytest.raises(ConfigurationError) as refused:
        data.add(made.path, Declared(str(notes)), checkpoints=tmp_path / "heads", options=newer)
    assert refused.value.code == "drill"
    made.drill_records.write_bytes(notes.read_bytes())  # neither under the name of the invented ones
    with pytest.raises(ConfigurationError) as refused:
        data.add(made.path, invented, checkpoints=tmp_path / "heads", options=newer)
    assert refused.value.code == "drill"
    assert PartyHome(joining.create(tmp_path / "real", "alpha").path).settings.drill is False


@pytest.mark.parametrize("settings", ['{"drill": true}', '{"drill": false}', "{}", "[]", "no JSON"])
def test_drill_is_announced_on_output_that_no_program_reads(tmp_path, capsys, settings):
    (tmp_path / "settings.json").write_text(settings)
    drill.announce(tmp_path / "settings.json", drill.PARTY_WORDS)
    words = f"{drill.PARTY_WORDS}\n" if "true" in settings else ""
    assert capsys.readouterr() == ("", words)


def test_protocol_messages_have_no_field_that_marks_a_drill():
    for file in (federation_pb2, secagg_pb2):
        names = [field.name for message in file.DESCRIPTOR.message_types_by_name.values() for field in message.fields]
        assert len(names) > 10
        assert not [name for name in names if "drill" in name or "rehears" in name]


def test_drill_coordinator_marks_every_planned_run_as_a_drill(tmp_path):
    home = tmp_path / "coordinator"
    assert coordinator.create(home, NewCoordinator(name="drill", addresses=["localhost:1"], drill=True)).drill
    corpora = {name for each in tasks.load(home / "drill" / "task.toml").generators for name in each.corpus}
    assert corpora == {path.name for path in (home / "drill").glob("*.jsonl")}
    written = runs._mark_rehearsal({"task": {"name": "t", "purpose": "to see"}, "privacy": {}})
    assert written["task"]["purpose"] == f"{drill.COORDINATOR_WORDS} to see"
    assert written["publication"]["limits"] == drill.COORDINATOR_WORDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whole_drill_succeeds_by_the_commands(tmp_path):
    """Three hospitals, real processes: every screen says what it is, and the ledgers charge as always."""
    life = Life(tmp_path, PARTIES, started, weights=True)
    home = tmp_path / "coordinator"
    address = ("--address", f"localhost:{life.port}", "--bind", f"127.0.0.1:{life.port}", "--metrics", "")
    told = fingerprint(life.operator("coordinator", "init", "--drill", *address, "--home", home))
    life.env["UNDERSONG_HOME"] = str(home)
    with life.serving():
        for name in PARTIES:
            party = tmp_path / "parties" / name
            life.operator("invite", name)
            life.hospital(name, "init", name, "--drill", "--home", party)
            fields = ("--text-field", "text", "--label-field", "label", "--user-field", "keeper")
            life.hospital(name, "data", "add", party / "drill" / "records.jsonl", *fields)
            life.hospital(name, "budget", "set", "--epsilon", "8", "--delta", "1e-4")
            life.hospital(name, "policy", "set", "--question", "all")
            read = life.hospital(name, "enroll", f"{name}.package", "--fingerprint", told)
            life.operator("sign", f"{name}.request.json", "--fingerprint", fingerprint(read))
            life.hospital(name, "enroll", "--grant", f"{name}.grant")
            life.run_daemon(name)
        life.wait_until_connected()
        run_once(life, home / "drill" / "task.toml", told)
        page = (tmp_path / "alpha.html").read_text()
        assert drill.PARTY_WORDS in page
        assert drill.COORDINATOR_WORDS in page
        assert drill.COORDINATOR_WORDS in (tmp_path / "published data" / "README.md").read_text()
        spent = json.loads(life.hospital("alpha", "ledger", "--json"))
        assert 0 < spent["spent_epsilon"] <= 2.0 + 1e-6
        assert json.loads(life.hospital("alpha", "status", "--json"))["drill"] is True
