"""Folders of local models as people have them: ends of a turn, spaces, absent weights, neighbours, faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.pace import slow_after, slow_but
from tests.doubles.tiny_llama import save_tiny_llama
from tests.doubles.tiny_models import ARCHITECTURES, save_tiny_model
from undersong_common.errors import ConfigurationError
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.transformers import (
    TransformersGenerator,
    TransformersSettings,
    end_ids,
    text_after_thinking,
)

pytestmark = pytest.mark.heavy

PROMPTS = (
    *("Write a note.", "The patient reports chest pain since this morning and", "My", "Reply with the text only: no"),
    *("He came in", "Sore left knee after a fall at work, and no fever, and", "What can I do?", "Fever. Since"),
)
REQUESTS = [GenerationRequest("zero_shot", "", prompt, 7 + number) for number, prompt in enumerate(PROMPTS)]


def local(path: Path, **fields: Any) -> TransformersGenerator:
    settings = TransformersSettings(
        **{"name": "tiny", "kind": "transformers", "path": path.name, "device": "cpu", "max_new_tokens": 16, **fields}
    )
    return TransformersGenerator(settings, folder=path.parent)


def texts_or_problems(generator: TransformersGenerator) -> list[str]:
    answers = dict(generator.answer(REQUESTS))
    return [answer.text if isinstance(answer, Completion) else answer.problem for _, answer in sorted(answers.items())]


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    change(settings)
    path.write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "temperature"), slow_but(product(ARCHITECTURES, [0.0, 1.0]), [("marian", 0.0)])
)
def test_model_writes_the_same_texts_in_a_batch_as_singly(
    tmp_path: Path, architecture: str, temperature: float
) -> None:
    folder = save_tiny_model(tmp_path / architecture, architecture)
    singly = texts_or_problems(local(folder, batch_size=1, temperature=temperature))
    assert texts_or_problems(local(folder, batch_size=8, temperature=temperature)) == singly
    assert len(set(singly)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "size"), slow_after([("marian", 8), ("rwkv", 1), ("bart", 8), ("gpt2", 8), ("mixtral", 1)], 2)
)
def test_model_whose_output_depends_on_its_batch_gets_batches_of_one(
    tmp_path: Path, architecture: str, size: int
) -> None:
    generator = local(save_tiny_model(tmp_path / architecture, architecture), batch_size=8)
    assert generator._find_batch_size() == size


def test_end_tokens_come_from_generation_config_tokenizer_and_template(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "llama")
    change_json(folder / "generation_config.json", lambda settings: settings.update(eos_token_id=[1]))
    change_json(folder / "tokenizer_config.json", lambda settings: settings.update(eos_token="<|system|>"))
    change_json(folder / "special_tokens_map.json", lambda settings: settings.update(eos_token="<|system|>"))
    model, tokenizer, _ = local(folder)._load_model()
    assert set(tokenizer.convert_ids_to_tokens(end_ids(tokenizer, model))) == {"<|assistant|>", "<|system|>", "<|end|>"}


def test_spaces_before_punctuation_are_kept_in_decoded_text(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "llama")
    change_json(folder / "tokenizer_config.json", lambda settings: settings.update(clean_up_tokenization_spaces=True))
    tokenizer = local(folder)._load_model()[1]
    french = "Où est la douleur ? Ici , dit - il ; n ' est-ce pas !"
    ids = tokenizer(french)["input_ids"]
    assert tokenizer.decode(ids) != french
    assert text_after_thinking(tokenizer, [], ids) == french


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "written", "text"),
    [
        ("", "<|system|>Short.<|user|>My card.", "Short.My card."),
        ("{{ '<x>' + m.reasoning_content + '</x>' if m.reasoning_content }}", "<x>Short.</x>My card.", "My card."),
        ("{{ '<x>' + m.reasoning_content + '</x>' if m.reasoning_content }}", "Short.</x>My card.", "My card."),
        ("{{ '<x>' + m.reasoning_content + '</x>' if m.reasoning_content }}", "<x>Short. I", ""),
        ("{{ '<|system|>' + m.thinking + '<|user|>' if m.thinking }}", "<|system|>Short.<|user|>My card.", "My card."),
        ("", "<think>Short.</think>My card.", "My card."),
        ("", "My card.", "My card."),
    ],
)
def test_thinking_marked_by_the_chat_template_is_removed(
    tmp_path: Path, template: str, written: str, text: str
) -> None:
    folder = save_tiny_llama(tmp_path / "llama")
    tokenizer = local(folder)._load_model()[1]
    tokenizer.chat_template = (
        "{% for m in messages %}<|" + "{{ m.role }}|>" + template + "{{ m.content }}<|end|>{% endfor %}"
    )
    assert text_after_thinking(tokenizer, [], tokenizer(written)["input_ids"]) == text


def test_unclosed_thinking_that_the_prompt_opened_is_removed(tmp_path: Path) -> None:
    tokenizer = local(save_tiny_llama(tmp_path / "llama"))._load_model()[1]
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>\n"
        "{{ '<x>\n' + m.reasoning_content + '\n</x>' if m.reasoning_content }}{{ m.content }}<|end|>{% endfor %}"
    )
    prompt = tokenizer("Write.<|assistant|>\n<x>\n")["input_ids"]
    assert text_after_thinking(tokenizer, prompt, tokenizer("Maybe <text>a draft</text> or")["input_ids"]) == ""
    assert text_after_thinking(tokenizer, prompt, tokenizer("Hm.</x><text>It hurts.")["input_ids"]) == "<text>It hurts."


def without_head(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_narrower_head(folder: Path) -> None:
    change_json(folder / "config.json", lambda settings: settings.update(vocab_size=settings["vocab_size"] - 3))


def with_nan(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][:] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_failing_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no chat here') }}", encoding="utf-8")


def with_undefined_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[9]['content'] + 1 }}", encoding="utf-8")


def with_further_token(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|new|>"], special_tokens=True)
    tokenizer.chat_template = "<|new|>{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)


def with_appended_end(folder: Path) -> None:
    from tokenizers import processors
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (without_head, "model-unloadable"),
        (with_narrower_head, "model-unloadable"),
        (with_nan, "model-fails"),
        (with_failing_template, "model-fails"),
        (with_undefined_template, "model-fails"),
        (with_further_token, "model-fails"),
        (with_appended_end, "model-fails"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_error_about_a_model_folder_names_the_folder(
    tmp_path: Path, spoil: Callable[[Path], None], code: str, temperature: float
) -> None:
    folder = save_tiny_llama(tmp_path / "llama")
    spoil(folder)
    with pytest.raises(ConfigurationError) as raised:
        texts_or_problems(local(folder, temperature=temperature))
    assert raised.value.code == code
    assert str(folder) in raised.value.problem


@pytest.mark.slow
def test_padding_token_beyond_the_models_vocabulary_is_not_used(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = save_tiny_llama(tmp_path / "llama", chat=False)
    usual = texts_or_problems(local(folder, max_new_tokens=8))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.save_pretrained(folder)
    assert texts_or_problems(local(folder, max_new_tokens=8)) == usual


@pytest.mark.slow
def test_prompt_longer_than_the_encoder_allows_fails_only_its_request(tmp_path: Path) -> None:
    generator = local(save_tiny_model(tmp_path / "bart", "bart"))
    long = GenerationRequest("zero_shot", "", "pain " * 400, 1)
    answers = dict(generator.answer([long, REQUESTS[0]]))
    assert not isinstance(answers[0], Completion)
    assert isinstance(answers[1], Completion)
