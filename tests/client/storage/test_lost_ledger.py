"""A hospital whose ledger is lost or older, in the middle of a run: what it answers afterwards, and what it counts."""

import shutil
from pathlib import Path

import pytest

from tests.doubles.party_home import command
from tests.doubles.restarts import ME, Federated, Hospital, vector_in
from undersong_client.home import Declared
from undersong_client.operations import data
from undersong_client.storage import datasets, store
from undersong_client.storage.addition import AdditionOptions
from undersong_common.errors import PrivacyRefusal
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.wire import codec

DELTA = 1e-4


class Interrupted:
    """A hospital with one sum opened of a run of two, whose ledger is then gone."""

    def __init__(self, folder: Path) -> None:
        (folder / "hospital").mkdir()
        self.folder = folder
        self.hospital = Hospital(folder / "hospital")
        self.ledger = self.hospital.path / "ledger.jsonl"
        self.older = folder / "older ledger"
        shutil.copyfile(self.ledger, self.older)
        party = self.hospital.start()
        self.federated = Federated(folder, self.hospital.identity)
        self.federated.agree(lambda request: party.answer(request).reply)
        self.federated.run(lambda _stage, request: party.answer(request).reply)
        self.spent = Ledger.read(self.ledger).spent(DELTA)
        self.ledger.unlink()

    def nothing_of_the_old_run_is_answered(self) -> None:
        """Whatever is asked: what was asked before, and the same agreement anew."""
        party, federated = self.hospital.start(), self.federated
        again = [*federated.asked.values(), *federated.agreement, federated.opening(), federated.opening(attempt=1)]
        for request in [*again, *federated.asked.values()]:
            reply = party.answer(request).reply
            assert codec.decode_reply(reply, ME).WhichOneof("body") == "refusal"
            assert vector_in(reply) is None


@pytest.fixture
def interrupted(tmp_path: Path) -> Interrupted:
    return Interrupted(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("here", ["nothing", "an older ledger"])
def test_lost_ledger_is_continued_with_the_whole_plan_charged(interrupted: Interrupted, here: str) -> None:
    hospital = interrupted.hospital
    if here != "nothing":
        shutil.copyfile(interrupted.older, interrupted.ledger)
        interrupted.ledger.chmod(0o600)
    with pytest.raises(PrivacyRefusal) as refused:
        hospital.start()
    assert "--charge-missing" in refused.value.remedy
    assert not list((hospital.path / "attempts").iterdir())
    restored = data.restore_ledger(hospital.path, checkpoints=hospital.marks, charge_missing=True)
    assert (restored.runs, restored.whole_budget) == ((interrupted.federated.manifest.run,), False)
    continued = Ledger.read(interrupted.ledger)
    plan = interrupted.federated.manifest.plan
    assert continued.spent(plan.usable_delta) == pytest.approx(plan.epsilon(), rel=1e-6)
    before = continued.spent(DELTA)
    assert before > interrupted.spent > 0  # of two sums one had been opened
    stated = plan.epsilon_if_all_others_collude()
    assert continued.spent_if_all_others_collude(plan.usable_delta) == pytest.approx(stated, rel=1e-6)
    interrupted.nothing_of_the_old_run_is_answered()
    party = hospital.start()
    new = Federated(interrupted.folder, hospital.identity, run="another run")
    new.agree(lambda request: party.answer(request).reply)
    assert ME in new.run(lambda _stage, request: party.answer(request).reply).survivors
    assert continued.spent(DELTA) > before


@pytest.mark.heavy
def test_backup_that_the_manual_describes_suffices_for_a_new_folder(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/hospital.md, "Every day": keys, policy, coordinator and ledger; no journal, no copy of the data."""
    hospital, backup = interrupted.hospital, interrupted.folder / "backup"
    monkeypatch.setenv("XDG_STATE_HOME", str(hospital.folder / "state"))
    data.restore_ledger(hospital.path, checkpoints=hospital.marks, charge_missing=True)
    backup.mkdir()
    shutil.copytree(hospital.path / "keys", backup / "keys")
    for name in ("policy.json", "coordinator.json"):
        shutil.copyfile(hospital.path / name, backup / name)
    command("ledger", "--backup", backup / "ledger.jsonl", "--home", hospital.path)
    identity = hospital.identity
    shutil.rmtree(hospital.path)
    store.close(hospital.path / "journal.sqlite")
    command("init", ME, "--home", hospital.path)
    shutil.copytree(backup / "keys", hospital.path / "keys", dirs_exist_ok=True)
    for name in ("policy.json", "coordinator.json"):
        shutil.copyfile(backup / name, hospital.path / name)
        (hospital.path / name).chmod(0o600)
    fields = ("--label-field", "label", "--user-field", "patient")
    restored = ("--restore-ledger", backup / "ledger.jsonl")
    command("data", "add", hospital.notes, *fields, *restored, "--home", hospital.path)
    assert hospital.identity == identity
    interrupted.nothing_of_the_old_run_is_answered()
    party = hospital.start()
    new = Federated(interrupted.folder, identity, run="another run")
    new.agree(lambda request: party.answer(request).reply)
    assert ME in new.run(lambda _stage, request: party.answer(request).reply).survivors


@pytest.mark.heavy
def test_earlier_version_of_a_data_set_gives_no_fresh_budget(tmp_path: Path) -> None:
    """Its checkpoints are not kept up any more: what was released from the newer version is not seen there."""
    (tmp_path / "hospital").mkdir()
    hospital = Hospital(tmp_path / "hospital")
    newer = hospital.notes.with_name("newer.jsonl")
    newer.write_text("".join(hospital.notes.read_text().splitlines(keepends=True)[:-1]))

    def add(file: Path, *, charge_missing: bool = False) -> datasets.Added:
        return data.add(
            hospital.path,
            Declared(str(file), "text", "label", "patient"),
            checkpoints=hospital.marks,
            options=AdditionOptions(new_version=True, abandon=True),
            restoration=data.Restoration(charge_missing=charge_missing),
        )

    def a_run(name: str) -> None:
        party = hospital.start()
        federated = Federated(tmp_path, hospital.identity, run=name)
        federated.agree(lambda request: party.answer(request).reply)
        federated.run(lambda _stage, request: party.answer(request).reply)

    a_run("one")
    add(newer)
    a_run("two")
    (hospital.path / "ledger.jsonl").unlink()
    again = add(hospital.notes, charge_missing=True)
    assert again.restored is not None
    assert (again.restored.whole_budget, again.restored.spending.left) == (True, 0.0)
