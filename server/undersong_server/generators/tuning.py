"""Preference tuning of a local causal model: DPO on LoRA weights.

DPO: Rafailov et al. 2023 (arXiv:2305.18290), equation 7; the reference is the folder's own model, without adapter.
LoRA: Hu et al. 2022, through peft. The library trl is not used: its releases need the package datasets, which refuses
the fsspec and huggingface-hub that torch and transformers 4 have in constraints.txt.

A tuning is a function of the pairs, the settings and the adapter that it starts from, so one that was interrupted is
done again from its start. On a GPU, sums of another order may change last digits.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load, save

from undersong_server.generators.interface import Tuning

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"  # names that peft reads
LAYERS = "all-linear"  # Every linear layer but the output's gets an adapter, as in POPri.


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt as tokens; the first is preferred."""

    prompt: Sequence[int]
    chosen: Sequence[int]
    rejected: Sequence[int]


def with_adapter(model: Any, tuning: Tuning) -> Any:
    """Puts a new adapter, which changes nothing yet, into the model. Returns peft's model with the adapter."""
    with torch.random.fork_rng():
        torch.manual_seed(tuning.seed)
        config = LoraConfig(r=tuning.rank, lora_alpha=tuning.rank, target_modules=LAYERS, task_type="CAUSAL_LM")
        return _put_adapter(model, config)


def with_files(model: Any, files: Mapping[str, bytes]) -> Any:
    """Puts the adapter in ``files`` (:func:`files_of`) into the model. Returns peft's model with the adapter."""
    handle = _put_adapter(model, LoraConfig(**json.loads(files[CONFIG_NAME])))
    set_peft_model_state_dict(handle, load(files[WEIGHTS_NAME]))
    return handle


def files_of(handle: Any) -> dict[str, bytes]:
    """The files in which peft keeps the adapter of the model ``handle``, by file name."""
    config = handle.peft_config["default"]
    config_fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "target_modules": sorted(config.target_modules),
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in get_peft_model_state_dict(handle).items()}
    return {CONFIG_NAME: json.dumps(config_fields, indent=2).encode("utf-8"), WEIGHTS_NAME: save(weights)}


def optimise(
    handle: Any, pairs: Sequence[Pair], tuning: Tuning, device: torch.device, report_progress: Callable[[int], None]
) -> None:
    """Trains the adapter in place. ``report_progress`` is called with the number of pairs done, over all epochs."""
    with torch.no_grad(), handle.disable_adapter():
        reference_log_probabilities = [log_probabilities(handle, pair, device) for pair in pairs]
    adapter_weights = [parameter for parameter in handle.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(adapter_weights, lr=tuning.learning_rate, weight_decay=0.0)
    rng = np.random.default_rng(tuning.seed)
    done_count = 0
    for _ in range(tuning.epochs):
        pair_order = rng.permutation(len(pairs))
        for batch_start in range(0, len(pairs), tuning.batch):
            batch = pair_order[batch_start : batch_start + tuning.batch]
            for pair_number in batch:
                chosen, rejected = (
                    log_probabilities(handle, pairs[pair_number], device) - reference_log_probabilities[pair_number]
                )
                loss = -torch.nn.functional.logsigmoid(tuning.beta * (chosen - rejected)) / len(batch)
                loss.backward()
                done_count += 1
                report_progress(done_count)
            optimiser.step()
            optimiser.zero_grad()


def log_probabilities(model: Any, pair: Pair, device: torch.device) -> torch.Tensor:
    """Log-probabilities of the chosen and of the rejected answer, float32 [2].

    Both rows begin with one prompt and are padded at the end, where a causal model's earlier positions do not look.
    """
    answers = (list(pair.chosen), list(pair.rejected))
    longest_answer = max(map(len, answers))
    token_rows = torch.tensor(
        [[*pair.prompt, *answer, *[0] * (longest_answer - len(answer))] for answer in answers], device=device
    )
    # The last position has no next token, and the prompt's last one has the answer's first.
    logits = (
        model(input_ids=token_rows, use_cache=False, logits_to_keep=longest_answer + 1)
        .logits[:, -longest_answer - 1 : -1]
        .float()
    )
    log_probabilities = logits.log_softmax(-1).gather(-1, token_rows[:, -longest_answer:, None])[..., 0]
    is_answer = torch.tensor(
        [[position < len(answer) for position in range(longest_answer)] for answer in answers], device=device
    )
    summed_log_probabilities: torch.Tensor = (log_probabilities * is_answer).sum(-1)
    return summed_log_probabilities


def answer_ids(tokenizer: Any, text: str, stop: Sequence[str], end_tokens: Sequence[int]) -> list[int]:
    """Returns the token ids of an answer: its text in the form that the request asks for, and the token that ends it.

    Args:
        stop: strings that end a completion; empty for a chat, whose prompts ask for a text between tags.
        end_tokens: tokens that end a text of the model.
    """
    if stop:
        answer_text = text + stop[0]
    else:
        answer_text = f"<text>{text}</text>"
    token_ids = tokenizer(answer_text, add_special_tokens=False)["input_ids"]
    return [*map(int, token_ids), *(() if stop else end_tokens[:1])]


def _put_adapter(model: Any, config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft sees GPT-2's transposed layers and says so
        handle = get_peft_model(model, config)
    # peft freezes the model, and torch copies a frozen matrix once for every row of states that are a slice, as those
    # of the last positions are: 16 GB for 50 rows of a small model with a large vocabulary.
    model.get_output_embeddings().register_forward_pre_hook(lambda _, states: (states[0].contiguous(),))
    return handle
