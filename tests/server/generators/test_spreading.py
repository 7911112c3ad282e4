"""Answers over a cluster: those of this machine, each once, also where a worker is lost or the model was trained."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.doubles.cluster import PickledCalls
from tests.doubles.coded import raises
from tests.doubles.spread_writer import WriterSettings
from tests.doubles.tiny_llama import save_tiny_llama
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.cluster import Cluster
from undersong_server.database.journal import Journal
from undersong_server.generators.author import Author
from undersong_server.generators.interface import GenerationRequest, Preference, Surroundings, TunableGenerator, Tuning
from undersong_server.generators.kinds import transformers as spreading
from undersong_server.generators.kinds.ngram import NgramSettings
from undersong_server.generators.kinds.transformers import TransformersSettings, spread
from undersong_server.generators.orders import Order
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

TEXTS = 20


@pytest.fixture(autouse=True)
def fresh_worker(monkeypatch):
    monkeypatch.setattr(spreading, "_loaded", {})


def note_requests(count: int = TEXTS) -> list[GenerationRequest]:
    return [GenerationRequest("zero_shot", "", f"Write note {number}.", 100 + number) for number in range(count)]


def over(cluster, folder, settings=None):
    settings = settings or WriterSettings(name="writer", path=".")
    return spread(settings, settings.build(Surroundings((), folder, None, {})), folder, cluster)


def test_cluster_answers_each_request_once_and_endpoints_are_not_spread(tmp_path):
    cluster = PickledCalls()
    answers = list(over(cluster, tmp_path).answer(note_requests()))
    assert sorted(index for index, _ in answers) == list(range(TEXTS))
    assert {index: answer.text for index, answer in answers} == {n: f"text {100 + n}" for n in range(TEXTS)}
    assert cluster.asked == [7]  # parts of three
    here = object()
    assert spread(NgramSettings(name="a", kind="ngram", corpus="a.txt"), here, tmp_path, cluster) is here


def test_error_for_a_missing_model_names_the_cluster_machine(tmp_path, monkeypatch):
    generator = over(PickledCalls(), tmp_path)
    monkeypatch.setattr("undersong_server.cluster.socket.gethostname", lambda: "node-7")

    def missing(*_):
        raise ConfigurationError("no folder", "copy it there", code="model-missing")

    monkeypatch.setattr(WriterSettings, "build", missing)
    with raises(ConfigurationError, "model-missing") as refused:
        list(generator.answer(note_requests()))
    assert refused.value.problem == "node-7: no folder"


@pytest.mark.slow
def test_cluster_workers_write_the_texts_of_a_local_generator(tmp_path):
    pytest.importorskip("torch")
    save_tiny_llama(tmp_path / "model")
    fields = {"name": "tiny", "kind": "transformers", "path": "model", "device": "cpu", "max_new_tokens": 8}
    settings = TransformersSettings(**fields, batch_size=2)
    here, there = (over(cluster, tmp_path, settings) for cluster in (None, PickledCalls()))
    assert isinstance(there, TunableGenerator)
    requests = note_requests(8)  # parts of whole batches: rounding follows a batch
    first = dict(there.answer(requests))
    assert first == dict(here.answer(requests))
    pairs = [Preference(requests[0], "a good note", "bad"), Preference(requests[1], "another good one", "worse")]
    strong = Tuning(rank=4, learning_rate=0.5, beta=0.1, epochs=3, batch=2, seed=1)
    files = here.tune(pairs, strong, lambda _: None)
    there.adapt(files)
    second = dict(there.answer(requests))
    assert second == dict(here.answer(requests))
    assert second != first


@pytest.mark.slow
def test_lost_worker_s_requests_are_repeated_and_nothing_is_charged_twice(tmp_path):
    pytest.importorskip("ray")
    settings = WriterSettings(name="writer", path=".", pause_s=0.5)
    killed = []

    def kill_the_first_worker():
        while not killed:
            begun = sorted(file for file in tmp_path.glob("[0-9]*") if file.read_text().endswith("\n"))
            if begun:
                killed.append(int(begun[0].read_text()))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.05)

    words = TaskWords(description="a note", labels=("a", "b"), label_descriptions={})
    orders = [Order("writer", "zero_shot", "ab"[number % 2]) for number in range(TEXTS)]
    with Cluster("local", 2) as cluster:
        watcher = threading.Thread(target=kill_the_first_worker, daemon=True)
        watcher.start()
        journal = Journal(tmp_path / "journal.sqlite")
        author = Author({"writer": over(cluster, tmp_path, settings)}, Prompts(words), journal, Silent(), seed=1)
        samples = author.write("first", 0, orders)
        watcher.join(5)
    assert killed
    assert killed[0] != os.getpid()
    assert any(len(file.read_text().split()) > 1 for file in tmp_path.glob("[0-9]*"))  # its part was begun anew
    assert all(samples)
    assert len({sample.text for sample in samples}) == TEXTS
    usage = author.usage["writer"]
    assert (usage.calls, usage.completion_tokens) == (TEXTS, 2 * TEXTS)
    again = Author({"writer": over(None, tmp_path, settings)}, Prompts(words), journal, Silent(), seed=1)
    begun = len(list(tmp_path.glob("[0-9]*")))
    assert again.write("first", 0, orders) == samples  # from the journal: no part is begun
    assert len(list(tmp_path.glob("[0-9]*"))) == begun
    journal.close()


def test_part_lost_twice_stops_the_run_after_yielding_earlier_parts(tmp_path):
    class Lost(PickledCalls):
        def each(self, function, calls, *, gpus=0):
            yield 1, function(*calls[1])
            yield 0, UndersongError("its worker was lost", code="worker-lost")

    answers = over(Lost(), tmp_path).answer(note_requests())
    assert [next(answers)[0] for _ in range(3)] == [3, 4, 5]
    with raises(UndersongError, "worker-lost"):
        next(answers)
