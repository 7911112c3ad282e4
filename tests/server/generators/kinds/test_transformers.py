"""Local models: a real, tiny Llama, loaded from a folder as a large one would be."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.doubles.pace import slow_after
from tests.doubles.tiny_llama import save_tiny_llama
from tests.doubles.tiny_t5 import save_tiny_t5
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.transformers import TransformersGenerator, TransformersSettings, prompt_ids

pytestmark = pytest.mark.heavy

PROMPTS = (
    "Write a note.",
    "The patient reports chest pain since this morning and",
    "My",
    "Reply with the text only: no",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_tiny_llama(root / "chat")
    save_tiny_llama(root / "plain", chat=False, positions=64)
    save_tiny_t5(root / "t5")
    return root


def local(folder: Path, path: str = "chat", **fields: Any) -> TransformersGenerator:
    settings = TransformersSettings(
        **{"name": "tiny", "kind": "transformers", "path": path, "device": "cpu", "max_new_tokens": 12, **fields}
    )
    return TransformersGenerator(settings, folder=folder)


def make_requests(count: int = 8) -> list[GenerationRequest]:
    return [GenerationRequest("zero_shot", "", PROMPTS[index % len(PROMPTS)], 1000 + index) for index in range(count)]


def ask_generator(generator: TransformersGenerator, requests: Sequence[GenerationRequest]) -> list[Completion]:
    found = dict(generator.answer(requests))
    assert sorted(found) == list(range(len(requests)))
    assert all(isinstance(answer, Completion) for answer in found.values())
    return [answer for _, answer in sorted(found.items()) if isinstance(answer, Completion)]


@pytest.mark.slow
def test_local_model_answer_does_not_contain_the_prompt(folder: Path) -> None:
    for path in ("chat", "plain"):
        for request, answer in zip(make_requests(), ask_generator(local(folder, path), make_requests()), strict=True):
            assert request.prompt not in answer.text
            assert "<|" not in answer.text
            assert 0 < answer.completion_tokens <= 12
            assert answer.note == ("" if answer.completion_tokens < 12 else answer.note)


def test_prompts_go_through_the_chat_template_of_the_folder(folder: Path) -> None:
    chat, plain = local(folder), local(folder, "plain")
    tokenizer = chat._load_model()[1]
    ids = prompt_ids(tokenizer, "My card")
    assert tokenizer.decode(ids) == "<|user|>My card<|end|><|assistant|>"
    assert plain._load_model()[1].decode(prompt_ids(plain._load_model()[1], "My card")) == "My card"
    assert [answer.prompt_tokens for answer in ask_generator(chat, make_requests(1))] == [
        len(prompt_ids(tokenizer, PROMPTS[0]))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", slow_after(["chat", "plain"], 1))
def test_local_model_answer_depends_on_its_seed_and_not_on_its_batch(folder: Path, path: str) -> None:
    together = ask_generator(local(folder, path, batch_size=8), make_requests())
    alone = ask_generator(local(folder, path, batch_size=1), make_requests())
    assert together == alone
    reversed_ = ask_generator(local(folder, path, batch_size=3), make_requests()[::-1])[::-1]
    assert reversed_ == alone
    again = [GenerationRequest("zero_shot", "", PROMPTS[0], seed) for seed in range(6)]
    assert len({answer.text for answer in ask_generator(local(folder, path), again)}) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("path", slow_after(["chat", "plain", "t5"], 1))
def test_finished_text_is_removed_from_its_batch(folder: Path, path: str) -> None:
    generator = local(folder, path, batch_size=8, max_new_tokens=24)
    stops = [tuple("aeiou"), ("zzz",)]  # the first end after a few tokens
    requests = [replace(request, stop=stops[n % 4 == 3]) for n, request in enumerate(make_requests())]
    rows: list[int] = []
    ask_generator(generator, requests[:1])  # the folder is tried at its first use
    generator._load_model()[0].register_forward_pre_hook(
        lambda _module, _given, named: rows.append(len(named.get("input_ids", ()))), with_kwargs=True
    )
    together = ask_generator(generator, requests)
    assert together == ask_generator(local(folder, path, batch_size=1, max_new_tokens=24), requests)
    if path != "t5":  # an encoder's batch stays whole
        assert rows[0] == 8
        assert rows[-1] < 8


@pytest.mark.slow
def test_local_model_at_temperature_zero_is_greedy(folder: Path) -> None:
    import torch

    generator = local(folder, temperature=0.0)
    first, second = ask_generator(generator, [GenerationRequest("zero_shot", "", PROMPTS[1], seed) for seed in (1, 2)])
    assert first == second
    model, tokenizer, _ = generator._load_model()
    ids = prompt_ids(tokenizer, PROMPTS[1])
    for _ in range(first.completion_tokens):
        logits = model(torch.tensor([ids])).logits[0, -1]
        ids.append(int(logits.argmax()))
    assert tokenizer.decode(ids[-first.completion_tokens :], skip_special_tokens=True) == first.text


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.6)])
def test_local_model_samples_follow_its_token_distribution(folder: Path, temperature: float, top_p: float) -> None:
    import torch

    generator = local(folder, temperature=temperature, top_p=top_p, max_new_tokens=1, batch_size=256)
    model, tokenizer, _ = generator._load_model()
    logits = model(torch.tensor([prompt_ids(tokenizer, "My")])).logits[0, -1].detach() / temperature
    probabilities, order = torch.softmax(logits, -1).sort(descending=True)
    nucleus = int((probabilities.cumsum(0) < top_p).sum()) + 1 if top_p < 1 else len(order)
    expected: dict[str, float] = defaultdict(float)
    for probability, token in zip(
        probabilities[:nucleus] / probabilities[:nucleus].sum(), order[:nucleus], strict=True
    ):
        expected[tokenizer.decode([int(token)], skip_special_tokens=True)] += float(probability)
    requests = [GenerationRequest("zero_shot", "", "My", seed) for seed in range(2048)]
    drawn = Counter(answer.text for answer in ask_generator(generator, requests))
    assert set(drawn) <= set(expected)
    for text, probability in sorted(expected.items(), key=lambda each: -each[1])[:12]:
        # 5.5 standard deviations over 36 comparisons: a false alarm in less than one of 500 000 changes
        assert abs(drawn[text] - 2048 * probability) < 5.5 * (2048 * probability * (1 - probability)) ** 0.5 + 1


@pytest.mark.slow
def test_prompt_longer_than_the_context_fails_only_its_request(folder: Path) -> None:
    generator = local(folder, "plain")
    requests = [*make_requests(2), GenerationRequest("zero_shot", "", "word " * 200, 1)]
    found = dict(generator.answer(requests))
    assert isinstance(found[2], GenerationError)
    assert "64" in str(found[2])
    assert isinstance(found[0], Completion)
    assert generator.counts == {"prompts_too_long": 1}


def test_a_folder_without_a_model_is_refused_at_the_start(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        local(folder, "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        list(local(tmp_path, ".").answer(make_requests(1)))
    assert refused.value.code == "model-unloadable"


@pytest.mark.parametrize(
    "settings",
    [
        {"_attn_implementation_internal": "somebody/kernels"},
        {"text_config": {"attn_implementation": {"": "somebody/kernels@main:attention"}}},
        {"model_type": "lightglue", "keypoint_detector_config": {"trust_remote_code": True}},
    ],
)
def test_a_model_whose_settings_fetch_code_is_refused_before_it_is_loaded(
    folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    shutil.copytree(folder / "plain", tmp_path / "plain")
    path = tmp_path / "plain" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(ConfigurationError, match="asks for code of a hub"):
        local(tmp_path, "plain")


def test_pickled_model_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    weights = shutil.copytree(folder / "plain", tmp_path / "pickled") / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(ConfigurationError, match=r"no file named model\.safetensors"):
        list(local(tmp_path, "pickled").answer(make_requests(1)))


def test_device_cuda_without_a_gpu_is_refused(folder: Path) -> None:
    import torch

    if torch.cuda.is_available():
        assert ask_generator(local(folder, device="auto"), make_requests(3))
    else:
        with pytest.raises(ConfigurationError) as refused:
            list(local(folder, device="cuda").answer(make_requests(1)))
        assert refused.value.code == "no-gpu"


def test_local_model_is_not_loaded_without_a_request(folder: Path) -> None:
    generator = local(folder)
    generator.observe(make_requests(1), [Completion("x")])
    assert list(generator.answer([])) == []
    assert generator._loaded is None


@pytest.mark.slow
def test_sequence_to_sequence_model_writes_the_same_in_batches_as_singly(folder: Path) -> None:
    together = ask_generator(local(folder, "t5", batch_size=4), make_requests())
    alone = ask_generator(local(folder, "t5", batch_size=1), make_requests())
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert len({answer.text for answer in together}) > 4
    assert all(0 < answer.completion_tokens <= 12 for answer in together)
    assert all("<|" not in answer.text for answer in together)


def test_base_model_continues_a_prompt_as_far_as_its_room_allows(folder: Path) -> None:
    request = GenerationRequest("zero_shot", "", "Text:", 5, style="completion", stop=("\n",), system="unread")
    wide = replace(request, room=3)
    short, long = ask_generator(local(folder, "chat", max_new_tokens=3), [request, wide])
    assert (short.completion_tokens, short.finish) == (3, "length")
    assert long.completion_tokens > 3
    tokenizer = local(folder)._load_model()[1]
    assert short.prompt_tokens == len(prompt_ids(tokenizer, "unread\n\nText:", chat=False))
    assert "<|user|>" not in tokenizer.decode(prompt_ids(tokenizer, "Text:", chat=False))


def test_system_words_begin_the_user_turn_if_there_is_no_system_role(folder: Path) -> None:
    tokenizer = local(folder)._load_model()[1]
    usual = tokenizer.decode(prompt_ids(tokenizer, "Write.", system="You write."))
    assert usual.startswith("<|system|>You write.<|end|><|user|>Write.")
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + tokenizer.chat_template
    )
    assert tokenizer.decode(prompt_ids(tokenizer, "Write.", system="You write.")).startswith(
        "<|user|>You write.\n\nWrite.<|end|>"
    )


@pytest.mark.slow
def test_device_map_does_not_change_what_a_local_model_writes(folder: Path) -> None:
    whole = ask_generator(local(folder), make_requests(4))
    for placed in ("auto", {"": "cpu"}):
        assert ask_generator(local(folder, device="auto", device_map=placed), make_requests(4)) == whole


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_quantised_local_model_takes_less_memory_and_writes(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "wide", width=128)
    sizes = {}
    for quantization in ("", "int8", "nf4", "fp4"):
        generator = local(tmp_path, "wide", quantization=quantization)
        assert all(0 < answer.completion_tokens <= 12 for answer in ask_generator(generator, make_requests(4)))
        model, tokenizer, _ = generator._load_model()
        sizes[quantization] = model.get_memory_footprint()
        model.save_pretrained(tmp_path / "saved")
        tokenizer.save_pretrained(tmp_path / "saved")
        assert all(answer.text for answer in ask_generator(local(tmp_path, "saved"), make_requests(4)))
    assert sizes["nf4"] == sizes["fp4"] < sizes["int8"] < sizes[""] / 2


@pytest.mark.parametrize(
    ("fields", "missing", "key"),
    [
        ({"device": "auto", "device_map": "auto"}, "accelerate", "device_map"),
        ({"quantization": "nf4"}, "bitsandbytes", "quantization"),
        ({"quantization": "int8"}, "accelerate", "quantization"),
    ],
)
def test_error_for_a_package_that_large_models_need_names_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], missing: str, key: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *given: None if name == missing else found("json", *given)
    )
    with pytest.raises(ConfigurationError) as caught:
        list(local(folder, **fields).answer(make_requests(1)))
    assert caught.value.code == "package-missing"
    assert key in caught.value.problem
    assert missing in caught.value.problem
    assert "undersong[large-models]" in caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": "cuda:1", "device_map": "auto"}, "one of them"),
        ({"quantization": "int8", "double_quantization": True}, "4-bit"),
    ],
)
def test_keys_of_large_models_that_contradict_each_other_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TransformersSettings(**{"name": "large", "kind": "transformers", "path": "folder", **fields})
