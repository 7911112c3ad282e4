"""A package of others: found by its entry points, run in a simulation, its statistic refused by a hospital."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import math
import py_compile
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles import foreign_package
from tests.doubles.delivery import delivered
from tests.doubles.example_records import ExampleRecords
from tests.doubles.foreign_package import NAME
from tests.doubles.parties import make_manifest, make_party, make_tables, propose
from tests.doubles.party_home import HashedEmbedder, command
from tests.doubles.sheets import blank_sheet
from tests.doubles.tasks import LABELS, make_task
from tests.noninterference import coordinator, public_examples
from tests.noninterference.questions import Asked
from undersong_client.consent import preview
from undersong_client.consent.policy import HospitalPolicy, review
from undersong_common.errors import ConfigurationError, InternalError, PeerFault, PrivacyRefusal
from undersong_common.models import embedders
from undersong_common.models.embedding import Embedder
from undersong_common.program import plugins
from undersong_common.text.table import Table
from undersong_protocol import statistics
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import PublicFacts
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server import methods
from undersong_server.operations.tasks import task_faults
from undersong_server.release.verify import verify
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

pytestmark = pytest.mark.heavy

METHOD = ('method.name="sentences"', "method.samples=8", "method.keep=6", "method.most=3")


@pytest.fixture
def package(tmp_path):
    folder = foreign_package.write_package(tmp_path / "installed")
    with foreign_package.installed(folder):
        yield folder


def load_task(folder, *assignments):
    return tasks.load(make_task(folder, parties=3), [*METHOD, *assignments])


def planned(folder) -> Plan:
    plan = plan_run(load_task(folder)).plan
    assert plan.sums[0].source
    return plan


def started_anew() -> None:
    """The party is another program than the coordinator."""
    foreign_package.forget()
    assert not foreign_package.is_imported()


def first_reply(folder, plan, policy):
    """What the first of three parties says to the plan."""
    tables = make_tables(3, 6, LABELS)
    parties = {name: make_party(folder, name, table, policy=policy) for name, table in tables.items()}
    return propose(parties["p0"], make_manifest(plan, parties, LABELS))


def empty_parties(folder):
    return {f"p{n}": make_party(folder, f"p{n}", Table((), (), None)) for n in range(3)}


def hospital(**changes) -> HospitalPolicy:
    allowed = {"minimum_parties": 1, "run_epsilon": 8.0, "total_epsilon": 8.0}
    return HospitalPolicy(**allowed | {"total_delta": 1e-4} | changes)


def test_installed_packages_are_found_and_hashed_without_an_import(package):
    assert [plugins.find(kind, name).words for kind, name in (("methods", "sentences"), ("statistics", NAME))] == [
        "undersong_sentences 1.0"
    ] * 2
    assert {each.name for kind in plugins.KINDS for each in plugins.installed(kind)} >= {"canned", "letters"}
    before = plugins.source_hash(plugins.find("statistics", NAME))
    assert not foreign_package.is_imported()
    (package / "sentences" / "__pycache__").mkdir()
    (package / "sentences" / "__pycache__" / "statistic.cpython-311.pyc").write_bytes(b"compiled")
    assert plugins.source_hash(plugins.find("statistics", NAME)) == before
    (package / "sentences" / "other.py").write_text("")
    assert plugins.source_hash(plugins.find("statistics", NAME)) != before
    assert "sentences" in methods.names()


def test_package_s_bytecode_compiled_from_another_source_is_not_run(package, tmp_path):
    source = plugins.source_hash(plugins.find("statistics", NAME))
    other = tmp_path / "other.py"
    other.write_text("raise SystemExit('another source')\n")
    kept = importlib.util.cache_from_source(str(package / "sentences" / "statistic.py"))
    py_compile.compile(str(other), kept, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert plugins.source_hash(plugins.find("statistics", NAME)) == source
    assert plugins.load(plugins.find("statistics", NAME)).name == NAME
    (package / "sentences" / "alone.pyc").write_bytes(b"of no source")
    assert plugins.source_hash(plugins.find("statistics", NAME)) != source


def test_module_that_the_package_hash_does_not_cover_is_not_imported(package, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    (away / "linked.py").write_text("")
    (package / "sentences" / "link").symlink_to(away)
    (package / "sentences" / "__pycache__").mkdir()
    (package / "sentences" / "__pycache__" / "hidden.py").write_text("")
    plugin = plugins.find("statistics", NAME)
    plugins.load(plugin, plugins.source_hash(plugin))
    for module in ("sentences.link.linked", "sentences.__pycache__.hidden"):
        with pytest.raises(ImportError, match="does not cover"):
            importlib.import_module(module)


def test_module_that_changed_since_the_hash_is_not_imported(package):
    plugin = plugins.find("statistics", NAME)
    source = plugins.source_hash(plugin)
    (package / "sentences" / "later.py").write_text("")
    with pytest.raises(ConfigurationError, match="is asked for"):
        plugins.load(plugin, source)
    assert not foreign_package.is_imported()
    plugins.load(plugin, plugins.source_hash(plugin))
    (package / "sentences" / "later.py").write_text("changed = True\n")
    importlib.invalidate_caches()
    with pytest.raises(ImportError, match="has changed"):
        importlib.import_module("sentences.later")
    with pytest.raises(ConfigurationError, match="other files of the package"):  # the new hash, the old modules
        plugins.load(plugin, plugins.source_hash(plugin))


def test_a_package_in_an_archive_is_refused(tmp_path, monkeypatch):
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_sentences/__init__.py", "")
    monkeypatch.syspath_prepend(archive)
    plugin = plugins.Plugin("statistics", NAME, "zipped_sentences:X", "zipped-sentences", "1.0")
    with pytest.raises(ConfigurationError, match="no folder of files"):
        plugins.source_hash(plugin)


def test_two_packages_that_declare_the_same_name_are_an_error(package, tmp_path):
    second = foreign_package.write_package(tmp_path / "second", package="another")
    with foreign_package.installed(second), pytest.raises(ConfigurationError, match="two packages declare"):
        plugins.find("statistics", NAME)


def test_plan_carries_name_and_hash_of_a_package_s_statistic(package, tmp_path):
    plan = planned(tmp_path)
    source = plugins.source_hash(plugins.find("statistics", NAME))
    assert (plan.sums[0].statistic, plan.sums[0].source) == (NAME, source)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    plan.verify()
    with pytest.raises(PrivacyRefusal, match="comes from no other package; on this machine it comes from another"):
        dataclasses.replace(plan, sums=(dataclasses.replace(plan.sums[0], source=""),)).verify()
    with pytest.raises(PrivacyRefusal, match="source"):
        dataclasses.replace(plan, sums=(dataclasses.replace(plan.sums[0], source="abc"),)).verify()


def test_plan_of_a_built_in_statistic_names_no_source_package(tmp_path):
    plan = plan_run(tasks.load(make_task(tmp_path))).plan
    assert all("source" not in each for each in plan.to_json()["sums"])


def test_a_hospital_refuses_another_package_s_statistic_by_name(package, tmp_path):
    plan = planned(tmp_path / "task")
    started_anew()
    refusal = first_reply(tmp_path, plan, hospital(statistics=(NAME,)).bounds).refusal
    assert f"the statistic '{NAME}' is another package's" in refusal.problem
    assert plan.sums[0].source in refusal.problem
    assert "a release of Undersong with that statistic" in refusal.remedy
    assert not foreign_package.is_imported()


def test_a_hospital_refuses_another_package_s_statistic_even_if_installed(package, tmp_path):
    plan = planned(tmp_path / "task")
    assert statistics.source(NAME)
    assert "is another package's" in first_reply(tmp_path, plan, hospital(statistics=(NAME,)).bounds).refusal.problem


def test_simulated_party_signs_a_package_s_statistic(package, tmp_path):
    simulated = Policy(largest_epsilon=math.inf)
    assert first_reply(tmp_path, planned(tmp_path / "task"), simulated).WhichOneof("body") == "signature"


def test_run_signed_by_an_earlier_release_opens_no_package_s_sum(package, tmp_path):
    planned(tmp_path / "task")
    requests = [SumRequest("sentences", statistics.known(NAME)(most=3))]
    plan = plan_sums(requests, Privacy(4.0, 1e-4), Quorum(1, 1, 0, 0))
    party = make_party(tmp_path, coordinator.NAME, make_tables(1, 5, LABELS)["p0"])
    course = coordinator.Course(make_manifest(plan, {party.name: party}, LABELS), "sentences", 0, Asked([], []))

    def reply(request: bytes) -> wire.Reply:
        return wire.Reply.FromString(party.handle(request))

    signature = reply(coordinator.proposal(course.manifest)).signature.signature
    assert reply(coordinator.agreement(course.manifest, signature)).WhichOneof("body") == "agreed"
    started_anew()
    refusal = reply(course.opening()).refusal
    assert "on this machine it comes from no other package" in refusal.problem
    assert "a release of Undersong with that statistic" in refusal.remedy
    assert not party._ledger.charges()
    assert not foreign_package.is_imported()


@pytest.mark.slow
@pytest.mark.parametrize("source", [7, ["a"], {"b": 1}, "x" * 64, "0" * 65])
def test_malformed_source_of_a_statistic_is_refused(package, tmp_path, source):
    plan = planned(tmp_path / "task")
    parties = empty_parties(tmp_path)
    manifest = make_manifest(plan, parties, LABELS)
    wrong = dataclasses.replace(plan, sums=(dataclasses.replace(plan.sums[0], source=source),))
    changed = dataclasses.replace(manifest, plan=wrong)
    with pytest.raises(PrivacyRefusal):
        review(
            Manifest.from_bytes(changed.to_bytes()),
            hospital().bounds,
            name="p0",
            identity=parties["p0"].public_identity,
            embedder=manifest.embedder,
        )


def test_preview_marks_a_statistic_of_another_package(package, tmp_path):
    plan = planned(tmp_path / "task")
    parties = empty_parties(tmp_path)
    (release,) = preview._group_releases(make_manifest(plan, parties, LABELS))
    assert release.source == plan.sums[0].source
    assert "ANOTHER PACKAGE'S PROGRAM" in release.meaning
    assert plan.sums[0].source in release.meaning


def test_one_file_makes_a_statistic_known_to_plan_preview_page_and_tests(package, tmp_path):
    plan = planned(tmp_path / "task")
    found = statistics.known(NAME)
    assert plan.sums[0].build() == found(most=3)
    releases = preview._group_releases(make_manifest(plan, empty_parties(tmp_path), LABELS))
    assert found.consent in releases[0].meaning
    assert found.consent in repr(preview.leaves(blank_sheet(releases=releases)))
    assert NAME in public_examples.names()

    @settings(max_examples=10, deadline=None, database=None)
    @given(st.data())
    def tried(data):
        facts = PublicFacts(embedding_size=8, labels=3)
        example = data.draw(public_examples.well_formed(NAME, facts))
        records = ExampleRecords(data.draw(st.integers(0, 99)), 20, size=8, labels=3)
        rows = example.statistic.rows(records, example.check(), {})
        assert (rows.take(np.arange(20)).sum(axis=1) == example.statistic.sensitivity.l1).all()
        with pytest.raises((ConfigurationError, PeerFault)):
            data.draw(public_examples.malformed(NAME, facts)).check()

    tried()


def test_consent_words_of_an_unloaded_statistic_are_not_shown(package, tmp_path):
    plan = planned(tmp_path / "task")
    words = statistics.known(NAME).consent
    started_anew()
    (release,) = preview._group_releases(make_manifest(plan, empty_parties(tmp_path), LABELS))
    assert words not in release.meaning


def test_a_statistic_that_no_package_declares_is_refused(package, tmp_path):
    (package / "undersong_sentences-1.0.dist-info" / "entry_points.txt").write_text(
        "[undersong.methods]\nsentences = sentences.method:METHOD\n"
    )
    with pytest.raises(ConfigurationError, match="no installed package declares the statistic"):
        planned(tmp_path)


def test_another_package_cannot_register_its_statistic_itself(package):
    SentenceHistogram = plugins.load(plugins.find("statistics", NAME))
    with pytest.raises(InternalError, match="is another package's"):
        statistics.register(SentenceHistogram)
    with pytest.raises(ConfigurationError, match="declared under the name"):
        statistics.register_foreign("sentences", SentenceHistogram, "0" * 64)
    with pytest.raises(ConfigurationError, match="not a dataclass"):
        statistics.register_foreign("nothing", object(), "0" * 64)


def test_error_names_a_package_that_cannot_be_loaded(package):
    (package / "sentences" / "method.py").write_text("import nowhere_at_all\n")
    with pytest.raises(ConfigurationError, match=r"undersong_sentences 1\.0 cannot be loaded"):
        methods.load("sentences")


@pytest.mark.heavy
def test_error_names_a_package_that_exits_at_its_import(package):
    (package / "sentences" / "__init__.py").write_text("raise SystemExit")
    plugin = plugins.find("statistics", NAME)
    with pytest.raises(ConfigurationError, match="cannot be loaded: SystemExit"):
        plugins.load(plugin)


def test_package_s_statistic_and_generator_run_in_a_simulation(package, tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    canned = '[{name="lines", kind="canned", lines=["One. Two.", "Only one.", "A! B? C."]}]'
    given = load_task(tmp_path / "task", f"generators={canned}")
    assert 1 <= len(delivered(given, tmp_path / "out").report.samples) <= 6
    started_anew()
    assert verify(tmp_path / "out").faults == ()
    (package / "sentences" / "other.py").write_text("")
    started_anew()
    with pytest.raises(ConfigurationError, match="which is not installed here with"):
        verify(tmp_path / "out")


def test_package_s_generator_may_name_a_file_that_is_no_model(package, tmp_path, monkeypatch):
    given = load_task(tmp_path, 'generators=[{name="lines", kind="canned", lines=["One."]}]')
    monkeypatch.setattr(type(given.generators[0]), "files", ("lines.txt",))
    ((said, _),) = task_faults(given, environment={})
    assert "lines.txt: no such file (generator lines)" in said
    given.locate("lines.txt").write_text("One.", encoding="utf-8")
    assert not list(task_faults(given, environment={}))


def test_package_s_embedder_embeds_texts_one_by_one_and_is_pinned(package, tmp_path):
    source = plugins.source_hash(plugins.find("embedders", "letters"))
    with pytest.raises(ConfigurationError, match="not 0000"):
        embedders.load(f"plug-in:letters@{'0' * 64}")
    refused = command("init", "alpha", "--embedder", "plug-in:letters", "--home", tmp_path / "alpha", code=2)
    assert source in refused
    assert not foreign_package.is_imported()
    found = embedders.load(f"plug-in:letters@{source}")
    rows = found.encode(["aab", "", "zz"])
    assert rows.shape == (3, 26)
    assert rows[0, :2] == pytest.approx(np.array([2.0, 1.0]) / np.sqrt(5.0))
    assert not rows[1].any()
    assert found.encode(["aab"]).tobytes() == rows[:1].tobytes()
    assert found.fingerprint != source
    command("init", "alpha", "--embedder", f"plug-in:letters@{source}", "--home", tmp_path / "alpha")


def test_package_s_embedder_that_fails_at_a_text_gives_zeros(caplog):
    class Broken:
        dimension = 3
        fingerprint = ""

        def embed(self, text):
            if text == "bad":
                raise ValueError(text)
            if text == "end":
                raise SystemExit
            if text == "refuse":
                raise ConfigurationError(text, text)
            if text == "odd":
                return [float("nan"), 3.0, 4.0]
            return [3.0, 4.0] if text == "short" else [0.0, 3.0, 4.0]

    bad = ["bad", "end", "refuse", "odd", "short"]
    rows = embedders.ForeignEmbedder(Broken(), "0" * 64).encode([*bad, "good"])
    assert rows.tolist() == [[0.0, 0.0, 0.0]] * len(bad) + [pytest.approx([0.0, 0.6, 0.8])]
    (told,) = caplog.messages
    assert "5 of 6" in told
    assert not any(text in told for text in bad)


BROKEN = {
    "raises": "raise KeyError(text)",
    "ends": "raise SystemExit",
    "has another shape": "return [1.0] * 25",
    "is not finite": "return [float('inf'), *found[1:]]",
    "is zero": "return [0.0] * 26",
    "differs between calls": "self.calls = getattr(self, 'calls', 0) + 1; return [*found[1:], self.calls]",
    "is the same for all": "return [1.0] * 26",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_package_s_broken_embedder_is_refused_when_it_is_loaded(package, tmp_path, line):
    file = package / "sentences" / "embedder.py"
    file.write_text(file.read_text().replace("return [", "found = [") + f"        {line}\n")
    pinned = f"plug-in:letters@{plugins.source_hash(plugins.find('embedders', 'letters'))}"
    with pytest.raises(ConfigurationError, match="letters"):
        embedders.load(pinned)
    with pytest.raises(ConfigurationError, match="letters"):
        embedders.dimension("plug-in:letters")
    given = load_task(tmp_path / "task", f'embedder.model="{pinned}"')
    assert any("letters" in fault for fault, _ in task_faults(given, environment={}))
    command("init", "alpha", "--embedder", pinned, "--home", tmp_path / "alpha", code=2)


def test_party_s_people_are_told_how_many_records_fail_to_embed(package, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    pinned = f"plug-in:letters@{plugins.source_hash(plugins.find('embedders', 'letters'))}"
    command("init", "alpha", "--embedder", pinned, "--home", tmp_path / "alpha")
    notes = tmp_path / "notes.jsonl"
    notes.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a note", "1234", "another note")))
    told = json.loads(command("data", "add", notes, "--home", tmp_path / "alpha", "--json"))
    assert told["without_vector"] == 1
    told = json.loads(command("data", "refresh", "--home", tmp_path / "alpha", "--json"))["added"]
    assert (told["records"], told["without_vector"]) == (3, 1)
