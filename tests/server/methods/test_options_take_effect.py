"""Every option of every method changes what it speaks of: prompts, plan, opened vectors or the corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import bench
from tests.doubles.steerable import steer_by_packaged
from tests.doubles.tasks import LABELS, make_task
from tests.doubles.topic_writer import GOOD_WORDS, VOCABULARY, topic_writer
from tests.doubles.word_embedding import embed
from undersong_common.models.embedding import quantise
from undersong_server import methods
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

BASES = {
    "wasp": ["samples=40"],
    "dpga": ["population=24", "elite=8", "rounds=2", "keywords_per_label=4", "embedding_size=48"],
    "dpkps": ["vocabulary=words.txt", "samples=24", "pairs=16", "length=3", "false_terms=0.9"],
    "discriminator": [
        "samples=40", "queries=8", "contrast=8", "embedding_size=48", "discriminator=moments", "keep=0.8"
    ],
    "augpe": ["samples=40", "rounds=3"],
    "pretext": ["samples=40", "rounds=2"],
    "fusegen": ["samples=40", "rounds=2", "candidates=6", "examples=2"],
    "undersong": ["samples=40", "rounds=2"],
    "vector": ["samples=40", "embedding_size=48"],
    "tuned": ["samples=20", "prompts=6", "texts=4", "rejected=2", "embedding_size=48"],
    "mixture": ["samples=12"],
    "mixture+labels": ["samples=200"],
    "cleaned-mixture": ["samples=200"],
}  # fmt: skip
PRUNED, TEACHERS = ["prune=true"], ["discriminator=teachers", "teachers=60", "queries=30"]
ITERATIVE, PRIVATE = ["sampler=iterative"], ["private_vocabulary=true", "vocabulary=words.txt", "false_terms=0.9"]
SHARES = ("label_shares={kitchen = 3, garden = 1}", "prompts")
ENGLISH = ["vocabulary=''", "vocabulary_words=300"]


@dataclass(frozen=True)
class Case:
    """An option's other value, what it changes, and the options that it needs beside it."""

    method: str
    change: str
    changes: str
    beside: Sequence[str] = field(default=())
    epsilon: str = "inf"

    @property
    def option(self) -> str:
        return self.change.partition("=")[0]


def cases(method: str, *rows: Any) -> list[Case]:
    return [Case(method, *row) for row in rows]


CASES = [
    *cases(
        "wasp",
        SHARES,
        ("samples=50", "prompts"),
        ("rounds=4", "plan"),
        ("votes=2", "vectors"),
        ("examples=2", "prompts"),
        ("shortlist=2", "prompts"),
        ("furthest=false", "plan"),
        ("furthest=false", "prompts"),
        ("clip=candidate", "weights", ["shrink=false"], "1.0"),
        ("shrink=false", "weights", (), "1.0"),
        ("plm_weighting=false", "weights"),
        ("contrastive=false", "prompts"),
        ("prune=true", "plan"),
        ("prune_share=0.5", "corpus", PRUNED),
        ("overlap=true", "prompts", ["shortlist=16"]),
        ("accounting=paper", "plan", (), "4.0"),
        ("delta_iter=1e-9", "plan", ["accounting=paper"], "4.0"),
        ("preset=paper", "plan", (), "4.0"),
    ),
    *cases(
        "dpga",
        SHARES,
        ("samples=90", "prompts"),
        ("population=30", "prompts"),
        ("elite=4", "prompts"),
        ("rounds=3", "plan"),
        ("sampling=0.4", "plan", (), "4.0"),
        ("accounting=paper", "plan", (), "4.0"),
        ("split=[1.0, 1.0, 1.0, 1.0]", "plan", (), "4.0"),
        ("length=false", "prompts"),
        ("length_bins=3", "plan"),
        ("keywords=false", "prompts"),
        ("ablation=first", "prompts", ["length=false"]),
        ("ablation=first", "plan", ["keywords=false"]),
        ("keywords_per_label=3", "prompts"),
        ("keyword_answers=1", "prompts"),
        ("keyword_generator=poor", "prompts"),
        ("label_votes=false", "vectors"),
        ("elite_by_label=false", "prompts"),
        ("suppression=false", "prompts", ["similarity=0.0"]),
        ("similarity=mean", "plan"),
        ("similarity=0.9", "tau", (), "4.0"),
        ("fallback_similarity=-0.9", "tau", ["accounting=paper", "similarity=mean"], "4.0"),
        ("embedding_size=24", "plan", ["similarity=mean"]),
        ("rewrite=0.0", "prompts"),
        ("fill_in=0.0", "prompts"),
        ("cross=0.0", "prompts"),
        ("generate=0.0", "prompts"),
        ("curator=true", "plan", ["accounting=paper"]),
        ("stated_epsilon=2.0", "plan", ["accounting=paper"]),
        ("keyword_request=all", "prompts"),
        ("keyword_shares=softmax", "prompts"),
        ("strong_rewrite=true", "prompts"),
        ("mask_rate=1.0", "prompts"),
        ("mates=elite", "prompts"),
        ("cross_keyword=false", "prompts"),
        ("corpus=elite", "corpus"),
        ("corpus=population", "corpus"),
        ("preset=paper", "plan"),
    ),
    *cases(
        "dpkps",
        SHARES,
        ("samples=30", "prompts"),
        ("vocabulary=fewer.txt", "prompts"),
        ("vocabulary_words=200", "plan", ENGLISH),
        ("common_words=0", "vocabulary", ENGLISH),
        ("document_terms=1", "vectors"),
        ("keyphrases=3", "prompts"),
        ("false_terms=1", "keyphrases"),
        ("length=2", "prompts"),
        ("pairs=8", "plan"),
        ("split=[1.0, 1.0]", "plan", (), "4.0"),
        ("sampler=iterative", "plan"),
        ("sampler=validated", "plan", ["validation=shots.jsonl"]),
        ("ensemble=linear", "plan", ITERATIVE),
        ("noise=laplace", "plan", (), "4.0"),
        ("width=20.0", "vectors"),
        ("sharpness=1.0", "prompts"),
        ("highest=1", "prompts"),
        ("class_in_prompt=true", "prompts"),
        ("examples=['a public text']", "prompts"),
        ("shots=shots.jsonl", "prompts"),
        ("shots_per_class=2", "prompts", ["shots=shots.jsonl"]),
        ("words=7", "prompts"),
        ("per_class=20", "prompts"),
        ("document_repeats=true", "vectors"),
        ("repeats=true", "prompts"),
        ("even=true", "plan", ITERATIVE),
        ("shots_shown=2", "prompts", ["shots=shots.jsonl"]),
        ("preset=paper", "plan", (), "4.0"),
    ),
    *cases(
        "discriminator",
        SHARES,
        ("samples=50", "prompts"),
        ("discriminator=votes", "plan"),
        ("keep=0.5", "corpus"),
        ("prompt=persona", "prompts"),
        ("words=30", "prompts"),
        ("tutor_share=0.3", "plan", (), "4.0"),
        ("teacher=fine-tuned", "plan", TEACHERS),
        ("teachers=50", "plan", TEACHERS),
        ("queries=10", "plan", TEACHERS),
        ("contrast=4", "inputs", TEACHERS),
        ("half=false", "plan", TEACHERS),
        ("answers=probabilities", "plan", TEACHERS),
        ("kept=5", "corpus"),
        ("accounting=paper", "plan", [*TEACHERS, "stated_epsilon=4.0"]),
        ("stated_epsilon=2.0", "plan", [*TEACHERS, "accounting=paper"]),
        ("tutor=none", "plan", [*TEACHERS, "accounting=paper"]),
        ("tutor_epsilon=0.1", "plan", [*TEACHERS, "accounting=paper", "stated_epsilon=4.0"]),
        ("noise=false", "plan", [*TEACHERS, "accounting=paper", "stated_epsilon=4.0"]),
        ("embedding_size=24", "plan"),
        ("votes=2", "vectors", ["discriminator=votes"]),
    ),
    *cases(
        "augpe",
        SHARES,
        ("mask_rate=1.0", "prompts"),
        ("samples=60", "prompts"),
        ("rounds=4", "plan"),
        ("selection=sampling", "prompts"),
        ("expansion=3", "prompts"),
        ("lookahead=1", "vectors"),
        ("cells=6", "plan"),
        ("within=0.5", "plan", ["cells=6"]),
        ("private_vocabulary=true", "plan", ["vocabulary=words.txt", "false_terms=0.9"]),
        ("vocabulary=fewer.txt", "prompts", PRIVATE),
        ("vocabulary_words=200", "plan", [*PRIVATE, *ENGLISH]),
        ("common_words=0", "vocabulary", [*PRIVATE, *ENGLISH]),
        ("document_terms=1", "vectors", PRIVATE),
        ("keyphrases=3", "prompts", PRIVATE),
        ("document_repeats=true", "vectors", PRIVATE),
        ("false_terms=1", "keyphrases", PRIVATE),
        ("vocabulary_share=0.5", "plan", PRIVATE, "4.0"),
        ("vocabulary_epsilon=1.0", "plan", PRIVATE, "4.0"),
        ("corpus=30", "prompts"),
        ("corpus=selected", "corpus"),
        ("votes=2", "vectors"),
        ("votes=2", "plan", ["cells=6"]),
        ("class_in_prompt=false", "prompts"),
        ("preset=paper", "prompts", ["corpus=24"]),
        ("prompt_terms=1", "prompts", PRIVATE),
    ),
    *cases(
        "pretext",
        SHARES,
        ("mask_rate=1.0", "prompts"),
        ("samples=60", "prompts"),
        ("rounds=3", "plan"),
        ("seeds=0.25", "prompts"),
        ("threshold=1000.0", "prompts", (), "4.0"),
        ("examples=1", "prompts"),
        ("preset=paper", "prompts"),
    ),
    *cases(
        "fusegen",
        SHARES,
        ("samples=60", "prompts"),
        ("rounds=3", "prompts"),
        ("candidates=2", "prompts"),
        ("examples=1", "prompts"),
        ("easy=1.0", "prompts"),
        ("boosts=0", "corpus"),
        ("preset=paper", "prompts"),
        ("rate=2.0", "corpus"),
    ),
    *cases(
        "undersong",
        ("samples=50", "prompts"),
        ("rounds=3", "plan"),
        ("written=2", "plan"),
        ("score=false", "plan"),
        ("label_shares={kitchen = 3, garden = 1}", "prompts"),
        *(
            (f"{option}", kind)
            for option in ("lengths=true", "words=true", "voted_examples=2")
            for kind in ("plan", "prompts")
        ),
    ),
    *cases(
        "vector",
        ("samples=50", "prompts"),
        ("label_shares={kitchen = 3, garden = 1}", "prompts"),
        ("strength=2.0", "steering"),
        ("embedding_size=24", "plan"),
    ),
    *cases(
        "tuned",
        ("samples=30", "prompts"),
        ("label_shares={kitchen = 3, garden = 1}", "prompts"),
        ("keep=1", "plan"),
        ("keep=0.2", "corpus"),
        ("rounds=1", "prompts"),
        ("rounds=1", "plan", ["score=votes"]),
        ("score=votes", "plan"),
        ("embedding_size=24", "plan"),
        ("prompts=8", "prompts"),
        ("texts=5", "prompts"),
        ("votes=1", "vectors"),
        ("pairs=2", "tuning"),
        ("rejected=3", "tuning"),
        *((f"{key}=3", "tuning") for key in ("rank", "beta", "epochs", "batch")),
        ("learning_rate=0.01", "tuning"),
    ),
    *cases("mixture", ("samples=20", "prompts"), SHARES),
    *(
        each
        for method in ("mixture+labels", "cleaned-mixture")
        for each in cases(method, ("samples=100", "prompts"), ("label_shares=records", "prompts", (), "0.2"))
    ),
]
ELSEWHERE = {  # options whose effect a test of their own shows, in a file beside this one
    ("discriminator", "student"): "test_discriminator.py::test_fine_tuned_student_learns_from_votes_to_recognise_texts",
    ("discriminator", "preset"): "test_papers.py::test_song_s_noise_is_two_analytic_gaussians",
    ("discriminator", "targets"): "test_papers.py::test_song_s_student_learns_hard_labels_of_equal_weight",
    ("discriminator", "student_rate"): "test_papers.py::test_song_s_student_learns_hard_labels_of_equal_weight",
    ("discriminator", "student_model"): "test_discriminator.py::test_a_fine_tuned_student_needs_teachers_and_a_folder"
    "_with_a_model",
    ("dpkps", "ends"): "test_dpkps.py::test_option_ends_makes_sequences_as_short_as_the_records",
    ("dpkps", "validation"): "test_dpkps.py::test_validation_picks_the_sampler_that_labels_public_texts_best",
    ("wasp", "base_contrast"): "test_papers.py::test_base_model_prompts_show_bad_examples_only_under_the_preset",
}


def test_every_method_option_has_a_test_of_its_effect():
    assert set(BASES) == set(methods.own_names())
    known = {(case.method, case.option) for case in CASES} | ELSEWHERE.keys()
    assert known == {(name, option) for name in BASES for option in methods.load(name).Options.model_fields}
    for file, _, name in (where.partition("::") for where in ELSEWHERE.values()):
        assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")


def seen(case: Case, change: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything that a run asks, opens and writes, by what it is."""
    asked = topic_writer(monkeypatch, mistaken=["poor"] if case.changes == "trust" else [])
    if case.changes == "trust":  # whose texts are useful is read from their words
        monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    tunings = steer_by_packaged(monkeypatch)
    opened: list[Any] = []

    original = bench.OpenFederation.private_sum

    def private_sum(self: Any, name: str, inputs: Any) -> Any:
        found = original(self, name, inputs)
        blocks = [segment.block.hex() for given in inputs for segment in given.segments]
        opened.append((name, blocks, found.values.tolist()))
        return found

    monkeypatch.setattr(bench.OpenFederation, "private_sum", private_sum)
    folder.mkdir()
    (folder / "words.txt").write_text("\n".join([*VOCABULARY, "zebra"]))
    (folder / "fewer.txt").write_text("\n".join(VOCABULARY[:5]))
    rows = [{"text": f"{n} the {GOOD_WORDS[label]} is here", "label": label} for label in LABELS for n in range(5)]
    (folder / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = make_task(folder, parties=1, records=200, samples=1234)
    path.write_text(path.read_text().replace("samples = 1234\n", ""))  # of the options each case names its own
    options = [*BASES[case.method], *case.beside, *([change] if change else [])]
    task = load(
        path,
        [
            f"method.name={case.method}",
            f"privacy.epsilon={case.epsilon}",
            *(f"method.{o}" for o in options),
        ],
    )
    run_plan = plan_run(task)
    chosen: Any = task.options  # of the case's method
    found: dict[str, Any] = {
        "plan": [(s.name, s.statistic, dict(s.parameters), s.law, s.sigma, s.event()) for s in run_plan.plan.sums]
    }
    if case.changes == "plan":
        return found
    samples, run = bench.run_method(task, run_plan, seed=3)
    return found | {
        # sorted, since the generators write at the same time
        "prompts": sorted((name, request.kind, request.system, request.prompt) for name, request in asked),
        "steering": sorted((request.prompt, request.steering) for _, request in asked),
        "tuning": tunings,
        "vectors": [(name, values) for name, _, values in opened],
        "inputs": [(name, blocks) for name, blocks, _ in opened],
        "corpus": [sample.text for sample in samples],
        "vocabulary": chosen.terms(run_plan.setting) if case.changes == "vocabulary" else (),
        **{name: run.records.get(name) for name in ("weights", "trust", "tau", "keyphrases")},
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}-{case.change}-{case.changes}")
def test_each_option_changes_the_part_that_it_names(case, tmp_path, monkeypatch):
    before, after = (seen(case, change, tmp_path / str(bool(change)), monkeypatch) for change in (None, case.change))
    assert before[case.changes] != after[case.changes]
    if case.changes not in ("plan", "vocabulary"):
        again = seen(case, None, tmp_path / "again", monkeypatch)
        assert again[case.changes] == before[case.changes]  # so that it is the option that changes it
