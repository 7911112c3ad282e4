"""Model folders that would run code, each as somebody would write it: refused by name, and none of it ever runs."""

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.doubles.pace import slow_after
from tests.doubles.tiny_bert import write_bert, write_embedder
from undersong_common.errors import ConfigurationError
from undersong_common.models import fine_tuning, model_files
from undersong_common.models.embedding import Embedder
from undersong_common.models.model_files import PACKAGED, checked_hashes, embedding_size, mixes_experts, model_folder

pytestmark = pytest.mark.heavy  # embedders are loaded

WORDS = ("pain", "chest", "card")
Attack = Callable[[Path, Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_embedder(tmp_path / "model", WORDS)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def with_module(folder: Path, **values: str) -> None:
    """One module more, as modules.json names it."""
    path = folder / "modules.json"
    more = {"idx": 3, "name": "3", "path": "3_More", **values}
    path.write_text(json.dumps([*json.loads(path.read_text()), more]))


def write_module(path: Path, marker: Path) -> None:
    """A module class that writes a file when it is imported."""
    path.write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).write_text('ran')\n"
        "import torch\nclass Module(torch.nn.Module):\n"
        "    @staticmethod\n    def load(*_, **__):\n        return Module()\n"
        "    def forward(self, x):\n        return x\n"
    )


class Payload:
    """Runs when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self._marker, "ran")


def class_of_the_folder(folder: Path, marker: Path) -> None:
    write_module(folder / "modeling_own.py", marker)
    with_module(folder, type="modeling_own.Module")


def class_of_the_path(folder: Path, marker: Path) -> None:
    """A class of any package that is installed, or lies where Python looks."""
    write_module(folder.parent / "undersong_stranger.py", marker)
    with_module(folder, type="undersong_stranger.Module")


def class_within_the_library(folder: Path, marker: Path) -> None:
    with_module(folder, type="sentence_transformers.sentence_transformer.modules.WordEmbeddings")


def activation(folder: Path, marker: Path) -> None:
    with_module(folder, type="sentence_transformers.models.Dense")
    (folder / "3_More").mkdir()
    called = {"in_features": 16, "out_features": 16, "activation_function": "torch.hub.list"}
    (folder / "3_More" / "config.json").write_text(json.dumps(called))


def python_file_beside(folder: Path, marker: Path) -> None:
    write_module(folder / "1_Pooling" / "anything.py", marker)


def auto_map(folder: Path, marker: Path) -> None:
    write_module(folder.parent / "configuration_own.py", marker)
    change(folder / "config.json", model_type="own", auto_map={"AutoModel": "configuration_own.Module"})


def tokenizer_auto_map(folder: Path, marker: Path) -> None:
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_own.Own", None]})


def trusted_arguments(folder: Path, marker: Path) -> None:
    change(folder / "sentence_bert_config.json", model_args={"trust_remote_code": True})


def other_arguments(folder: Path, marker: Path) -> None:
    change(folder / "sentence_bert_config.json", config_args={"revision": "main"})


def kernel_of_a_hub(folder: Path, marker: Path) -> None:
    change(folder / "config.json", attn_implementation="somebody/kernels")


def kernel_by_another_key(folder: Path, marker: Path) -> None:
    """What a configuration sets from its file under any name."""
    change(folder / "config.json", _attn_implementation_internal="somebody/kernels")


def kernel_by_a_short_name(folder: Path, marker: Path) -> None:
    """Stands for one of a hub where the package that computes it is not installed."""
    change(folder / "config.json", attn_implementation="flash_attention_2")


def name_in_capitals(folder: Path, marker: Path) -> None:
    """The same file on a file system that knows no capitals."""
    change(folder / "config.json", auto_map={"AutoModel": "configuration_own.Module"})
    (folder / "config.json").rename(folder / "Config.json")


def adapter_in_capitals(folder: Path, marker: Path) -> None:
    (folder / "Adapter_Config.json").write_text("{}")


def pickled_weights(folder: Path, marker: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))


def pickled_shard(folder: Path, marker: Path) -> None:
    """An index of safetensors that names a pickle, in the folder or elsewhere."""
    (folder / "model.safetensors").unlink()
    (folder.parent / "shard.bin").write_bytes(pickle.dumps(Payload(marker)))
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "../shard.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pickle_beside(folder: Path, marker: Path) -> None:
    (folder / "1_Pooling" / "data.pkl").write_bytes(pickle.dumps(Payload(marker)))


def library(folder: Path, marker: Path) -> None:
    (folder / "kernels.so").write_bytes(b"\x7fELF")


def adapter(folder: Path, marker: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder.parent)}))


def link_to_a_file(folder: Path, marker: Path) -> None:
    (folder / "vocab.txt").rename(folder.parent / "elsewhere.txt")
    (folder / "vocab.txt").symlink_to(folder.parent / "elsewhere.txt")


def link_to_a_folder(folder: Path, marker: Path) -> None:
    (folder / "1_Pooling").rename(folder.parent / "elsewhere")
    (folder / "1_Pooling").symlink_to(folder.parent / "elsewhere")


def module_elsewhere(folder: Path, marker: Path) -> None:
    with_module(folder, type="sentence_transformers.models.Pooling", path="../elsewhere")


def absolute_module(folder: Path, marker: Path) -> None:
    with_module(folder, type="sentence_transformers.models.Pooling", path="/")


EVERYWHERE = [
    python_file_beside, auto_map, tokenizer_auto_map, kernel_of_a_hub, kernel_by_another_key, kernel_by_a_short_name,
    name_in_capitals, adapter_in_capitals, pickled_weights, pickled_shard, pickle_beside,
    library, adapter, link_to_a_file,
]  # fmt: skip
EMBEDDERS = [
    class_of_the_folder, class_of_the_path, class_within_the_library, activation, trusted_arguments, other_arguments,
    link_to_a_folder, module_elsewhere, absolute_module,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*EVERYWHERE, *EMBEDDERS])
def test_an_embedder_that_would_run_code_is_refused_and_runs_none(
    folder: Path, tmp_path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    assert Embedder.load(folder).encode(["pain chest"]).shape == (1, 16)
    attack(folder, marker)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=str(tmp_path)) as refused:
        Embedder.load(folder).encode(["pain chest"])
    assert refused.value.remedy
    assert not marker.exists()
    assert "undersong_stranger" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("attack", EVERYWHERE)
def test_a_teacher_model_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marker = write_bert(tmp_path / "model", WORDS), tmp_path / "marker"
    (folder / "1_Pooling").mkdir()
    fine_tuning.load(folder, classes=2)
    attack(folder, marker)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError):
        fine_tuning.load(folder, classes=2)
    assert not marker.exists()


def test_model_file_attacks_succeed_without_the_checks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above could not fail."""
    marker = tmp_path / "marker"
    class_of_the_path(folder, marker)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(model_files, "_check_json", lambda *_: None)
    monkeypatch.setattr(model_files, "embedding_size", lambda _: 16)
    Embedder.load(folder)._load_encoder()
    assert marker.read_text() == "ran"
    sys.modules.pop("undersong_stranger", None)


def test_every_file_of_a_model_folder_changes_its_fingerprint(folder: Path) -> None:
    seen = {Embedder.load(folder).fingerprint}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        seen.add(model_files.fingerprint("undersong embedder, batches of fixed shape", checked_hashes(folder)))
        path.write_bytes(before)
    (folder / "notes").mkdir()
    (folder / "notes" / "LICENSE").write_text("free")
    seen.add(Embedder.load(folder).fingerprint)
    assert len(seen) == 2 + len([path for path in folder.rglob("*") if path.is_file()]) - 1


@pytest.mark.slow
def test_the_packaged_model_is_pinned_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_hashes(PACKAGED) == model_files.PACKAGED_FILES
    copy = tmp_path / "model"
    shutil.copytree(model_folder(PACKAGED), copy)
    monkeypatch.setattr(model_files, "model_folder", lambda _: copy)
    checked_hashes(PACKAGED)
    for name in ("1_Pooling/config.json", "config.json", "vocab.txt", "README.md", "model.safetensors"):
        path = copy / name
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        with pytest.raises(ConfigurationError, match=f"{name} is not the file"):
            checked_hashes(PACKAGED)
        path.unlink()
        with pytest.raises(ConfigurationError, match=f"{name} is not the file"):
            checked_hashes(PACKAGED)
        path.write_bytes(before)
    (copy / "more.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"more\.json is not the file"):
        checked_hashes(PACKAGED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "dense", "size"),
    [
        ({"word_embedding_dimension": 16, "pooling_mode_cls_token": True}, None, 16),
        ({"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None, 32),
        ({"embedding_dimension": 16, "pooling_mode": "mean"}, None, 16),
        ({"embedding_dimension": 16, "pooling_mode": ["mean", "max"]}, None, 32),
        ({"embedding_dimension": 16, "pooling_mode": "cls"}, 5, 5),
    ],
)
def test_the_embedding_size_is_known_without_loading(
    folder: Path, pooling: dict[str, Any], dense: int | None, size: int
) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense is not None:
        from sentence_transformers.models import Dense

        with_module(folder, type="sentence_transformers.models.Dense", path="3_Dense")
        (folder / "3_Dense").mkdir()
        import torch

        torch.manual_seed(1)  # some weights give different texts one vector
        Dense(in_features=16, out_features=dense).save(str(folder / "3_Dense"))
    embedder = Embedder.load(folder)
    assert embedder._encoder is None
    assert embedder.dimension == embedding_size(folder) == size
    assert embedder.encode(["pain"]).shape == (1, size)
    assert np.linalg.norm(embedder.encode(["pain"])) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("modules.json", None, "modules.json is missing"),
        ("modules.json", "{}", "no JSON list"),
        ("modules.json", "[3]", "names the class"),
        ("modules.json", "[", "cannot be read"),
        ("modules.json", "[]", "no pooling"),
        ("config.json", "[" * 100_000, "cannot be read"),
        ("1_Pooling/config.json", "{}", "no size"),
        ("1_Pooling/config.json", None, "cannot be read"),
    ],
)
def test_folder_without_a_usable_model_is_refused(folder: Path, name: str, content: str | None, complaint: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ConfigurationError, match=complaint):
        Embedder.load(folder)


@pytest.mark.parametrize(
    ("settings", "rows_of_one"),
    slow_after(
        [
            ({"num_local_experts": 8}, True),
            ({"text_config": {"n_routed_experts": 64}}, True),
            ({"layers": [{"num_experts": 2}]}, True),
            ({"num_experts": 1}, False),
            ({"num_experts": None, "expert_dropout": 0.5}, False),
            ({}, False),
        ],
        2,
    ),
)
def test_a_mixture_of_experts_has_batches_of_one_row(folder, settings, rows_of_one):
    change(folder / "config.json", **settings)
    assert mixes_experts(folder) is rows_of_one
    encoder: Any = Embedder.load(folder)._load_encoder()
    assert not rows_of_one or encoder.batch_rows(8) == 1
