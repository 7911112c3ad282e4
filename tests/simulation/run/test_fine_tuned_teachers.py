"""A whole simulation whose parties fine-tune their own model as teachers."""

import json

import pytest

from tests.doubles.delivery import delivered
from tests.doubles.tasks import make_task
from tests.doubles.tiny_bert import write_bert
from undersong_common.errors import ConfigurationError
from undersong_server.release.files import charges
from undersong_server.runs import task as tasks

pytestmark = pytest.mark.heavy

MARKER = "zyzzyva-4712"
WORDS = ("pan", "oven", "soup", "knife", "rose", "spade", "soil", "hedge", "the", "near")


def run(folder, **data):
    method = {"name": "discriminator", "discriminator": "teachers", "teacher": "fine-tuned", "samples": 60}
    method |= {"teachers": 4, "queries": 20, "contrast": 30, "tutor_share": 0.1}
    task = make_task(folder / "task", records=24, marker=MARKER, data=data, privacy={"epsilon": 40.0})
    lines = task.read_text().splitlines()
    start = lines.index("[method]")
    stop = next(at for at in range(start + 1, len(lines)) if lines[at].startswith("["))
    lines[start + 1 : stop] = [f"{key} = {json.dumps(value)}" for key, value in method.items()]
    task.write_text("\n".join(lines))
    return delivered(tasks.load(task), folder / "out", seed=3, insecure_noise_seed=None)


@pytest.mark.slow
def test_a_simulation_ends_with_two_charges_a_party_and_no_private_text(tmp_path, monkeypatch):
    monkeypatch.setattr("undersong_protocol.statistics.teacher_votes.STEPS", 4)
    write_bert(tmp_path / "task" / "bert", WORDS)
    delivered = run(tmp_path, teacher_model="bert")
    assert len(delivered.report.samples) >= 30
    ledger = charges(tmp_path / "out")
    for party in ("site-0", "site-1", "site-2"):
        charged = [entry["query"] for entry in ledger if entry["party"] == party and entry["kind"] == "charge"]
        assert charged == ["labels", "teachers"]
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or MARKER.encode() not in path.read_bytes()


def test_simulation_without_a_model_is_refused_before_any_charge(tmp_path):
    with pytest.raises(ConfigurationError, match="names no local model") as refused:
        run(tmp_path)
    assert "data.teacher_model" in refused.value.remedy
    for ledger in (tmp_path / "out").rglob("ledgers/*.jsonl"):
        assert '"charge"' not in ledger.read_text()
