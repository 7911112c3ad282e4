"""Fine-tuned teachers: one unit moves one shard's votes and no other bit, and nothing of a teacher is left behind."""

import dataclasses
import logging

import numpy as np
import pytest

from tests.doubles.pace import slow_after
from tests.doubles.tiny_bert import fails_at_last_word, write_bert
from undersong_client.records.private import PrivateRecords
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.statistics import PublicInputs, teacher_votes
from undersong_protocol.statistics.teacher_votes import TeacherVotes

pytestmark = pytest.mark.heavy

LABELS = ("x", "y")
WORDS = ("own", "made", "note", "walk", "sleep", "knee", "cough")
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert"), WORDS)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """A model of one layer needs large steps, and few of them."""
    settings = dataclasses.replace(teacher_votes.SETTINGS, learning_rate=2e-2, epochs=1)
    monkeypatch.setattr(teacher_votes, "SETTINGS", settings)
    monkeypatch.setattr(teacher_votes, "STEPS", 6)


def public_texts():
    texts = [f"{('own', 'made')[n // 2 % 2]} {WORDS[3 + n % 4]} note" for n in range(8)]
    return texts, (np.arange(8) % 2).astype(np.float64)


def inputs(**changes):
    (asked, asked_of), (shown, shown_of) = (
        public_texts(),
        ([f"made {word} note" for word in WORDS[3:] * 3], np.arange(12) % 2),
    )
    texts = {"queries": asked, "contrast": shown}
    numbers = {"queries: classes": asked_of, "contrast: classes": shown_of.astype(np.float64)}
    for name, value in changes.items():
        (texts if isinstance(value, list) else numbers)[name.replace("_", ": ")] = value
    return PublicInputs({}, numbers, texts)


def hold_rows(rows, model, unit="sample"):
    texts, labels, users = zip(*rows, strict=True)
    return PrivateRecords(
        Table(texts, labels, users),
        LABELS,
        Privacy(1.0, 1e-5, unit, 1 if unit == "sample" else 8),
        key=KEY,
        embed=lambda _: pytest.fail("fine-tuned teachers read texts"),
        local_model=lambda: str(model),
    )


def shard_votes(statistic, records):
    rows = statistic.rows(records, inputs(), {})
    matrix = rows.take(np.arange(len(rows)))
    return {int(shard): matrix[row].tobytes() for row, shard in enumerate(rows.units)}


ROWS = [(f"own {WORDS[3 + n % 4]} note {'walk ' * (n % 5)}".strip(), LABELS[n % 3 % 2], str(n // 2)) for n in range(14)]
STATISTIC = TeacherVotes(queries=10, teachers=5, labels=2, fine_tuned=True)


@pytest.mark.slow
def test_a_model_that_fails_at_one_record_loses_one_teacher_s_votes(tmp_path):
    folder = write_bert(tmp_path / "bert", (*WORDS, "rare"))
    fails_at_last_word(folder)
    without = shard_votes(STATISTIC, hold_rows(ROWS, folder))
    beside = shard_votes(STATISTIC, hold_rows([*ROWS, ("own rare note", "x", "7")], folder))
    changed = [shard for shard in without.keys() | beside.keys() if without.get(shard) != beside.get(shard)]
    assert len(changed) <= 1
    assert len(without) > 2


def scores_of_shard(model, others, threads, noise):
    """Every score, to the last bit, of the teacher of shard 2, while the process is in some other state."""
    import torch

    found = {}
    original = teacher_votes._teacher_scores

    def seen(*arguments):
        found[arguments[-1]] = original(*arguments)
        torch.rand(noise)  # what other threads of the process may draw
        return found[arguments[-1]]

    rows = [("own knee note", "x", "a"), ("own walk cough sleep", "y", "b"), *others]
    shards = np.array([2, 2] + [n % 2 for n in range(len(others))])
    (asked, asked_of), contrast = public_texts(), inputs()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(teacher_votes, "_teacher_scores", seen)
            teacher_votes.votes(
                [row[0] for row in rows],
                np.array([LABELS.index(row[1]) for row in rows]),
                shards,
                teacher_votes.TeacherCandidates(
                    contrast.texts["contrast"], contrast.numbers["contrast: classes"].astype(np.int64)
                ),
                teacher_votes.TeacherCandidates(asked, asked_of.astype(np.int64)),
                model=str(model),
                teachers=3,
                half=True,
            )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    return found[2]


@pytest.mark.slow
def test_teacher_s_scores_depend_on_its_own_shard_alone_to_the_last_bit(model):
    """Votes round, so a leak between teachers could hide in them; scores do not."""
    import torch

    torch.manual_seed(1)
    alone = scores_of_shard(model, [], threads=1, noise=1)
    torch.manual_seed(2)
    among = scores_of_shard(model, ROWS, threads=2, noise=7)
    assert alone.tobytes() == among.tobytes()
    assert len(set(alone.tolist())) > 2


@pytest.mark.slow
def test_torch_s_random_state_stays_as_it_was(model):
    import torch

    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    shard_votes(STATISTIC, hold_rows(ROWS, model))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
@pytest.mark.parametrize("half", slow_after([True, False], 1))
def test_teacher_votes_separate_records_from_candidates(model, half, monkeypatch):
    monkeypatch.setattr(teacher_votes, "STEPS", 40)
    statistic = dataclasses.replace(STATISTIC, teachers=2, half=half)
    rows = statistic.rows(hold_rows(ROWS, model), inputs(), {})
    votes = rows.take(np.arange(len(rows)))
    assert set(np.unique(votes)) <= {0.0, 1.0}
    assert not votes[:, 8:].any()  # planned, but not published
    own = np.array([text.startswith("own") for text in public_texts()[0]])
    assert votes[:, :8][:, own].mean() > 0.9
    assert votes[:, :8][:, ~own].mean() < 0.1


@pytest.mark.slow
def test_teachers_leave_nothing_in_files_memory_or_logs(model, tmp_path, monkeypatch, caplog):
    for name in ("TMPDIR", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    memory = {}
    with caplog.at_level(logging.DEBUG):
        STATISTIC.rows(hold_rows(ROWS, model), inputs(), memory)
    assert memory == {}
    assert list(tmp_path.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == before
    assert "knee" not in caplog.text
    # every shard is mentioned, so that the log does not tell the empty ones
    empty = dataclasses.replace(STATISTIC, teachers=9)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert len(empty.rows(hold_rows(ROWS[:2], model), inputs(), {})) <= 2
    assert sum("has voted" in record.getMessage() for record in caplog.records) == 9


@pytest.mark.slow
@pytest.mark.parametrize("half", [True, False])
def test_teacher_that_diverged_casts_no_votes(model, half, monkeypatch):
    monkeypatch.setattr(teacher_votes.fine_tuning, "logits", lambda *_: np.full((8, 2), np.nan))
    rows = dataclasses.replace(STATISTIC, half=half).rows(hold_rows(ROWS, model), inputs(), {})
    assert not rows.take(np.arange(len(rows))).any()


def test_contrast_classes_get_the_weights_of_the_shard_s_classes():
    own, contrast = np.array([0, 0, 0, 2]), np.array([0] * 50 + [1] * 50)
    rows, weights = teacher_votes._draw_contrast(own, contrast, np.random.default_rng(0))
    assert weights[:12].sum() == pytest.approx(3 / 8)
    assert set(contrast[rows[:12]]) == {0}
    assert weights[12:].sum() == pytest.approx(1 / 8)  # no candidate has class 2: all of them stand for it
    assert len(rows) == len(weights) == 16


@pytest.mark.slow
def test_empty_shards_are_trained_as_others_are_and_vote_nothing(model, monkeypatch):
    trained = []
    original = teacher_votes._teacher_scores
    monkeypatch.setattr(
        teacher_votes, "_teacher_scores", lambda *arguments: trained.append(arguments[-1]) or original(*arguments)
    )
    assert len(STATISTIC.rows(hold_rows(ROWS[:1], model), inputs(), {})) == 1
    assert trained == list(range(5))


def test_a_shard_without_records_has_no_vote_whatever_its_teacher_says(monkeypatch):
    monkeypatch.setattr(teacher_votes, "_load_model", lambda _model: (None, None))
    monkeypatch.setattr(teacher_votes, "_teacher_scores", lambda *_: np.ones(2))
    public = teacher_votes.TeacherCandidates(("one", "two"), np.zeros(2, dtype=np.int64))
    found = teacher_votes.votes(
        ["own", "made"],
        np.zeros(2, dtype=np.int64),
        np.array([0, 2]),
        public,
        public,
        model="m",
        teachers=3,
        half=False,
    )
    assert found.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


def test_party_without_a_working_teacher_model_is_refused_with_a_remedy(tmp_path):
    for path, words in (
        ("", "names no local model"),
        (tmp_path, "cannot be used"),
        (tmp_path / "no", "cannot be used"),
    ):
        for asked in (
            lambda path=path: STATISTIC.check_party(str(path)),
            lambda path=path: STATISTIC.rows(hold_rows(ROWS, path), inputs(), {}),
        ):
            with pytest.raises(ConfigurationError, match=words) as refused:
                asked()
            assert str(tmp_path) not in f"{refused.value} {refused.value.remedy}"  # it leaves the party
            assert "data.teacher_model" in refused.value.remedy
    dataclasses.replace(STATISTIC, fine_tuned=False).check_party("")
