"""Real models of some thousand weights, of further architectures, with the tokenizer of the tiny Llama."""

from pathlib import Path
from typing import Any

from tests.doubles.tiny_llama import save_tiny_llama

_SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": (
        "BartForConditionalGeneration",
        {
            **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "init_std": 0.5},
            **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 1},
            **{"max_position_embeddings": 128, "decoder_start_token_id": 2, "forced_eos_token_id": None},
        },
    ),
    "marian": (
        "MarianMTModel",
        {
            **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "init_std": 0.5},
            **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 1},
            **{"max_position_embeddings": 128, "decoder_start_token_id": 1, "forced_eos_token_id": None},
        },
    ),
    "rwkv": (
        "RwkvForCausalLM",
        {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 128},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        {
            **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 128},
        },
    ),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
}
ARCHITECTURES = tuple(_SMALL)


def save_tiny_model(folder: Path, architecture: str) -> Path:
    """Writes a model of one of ARCHITECTURES and its tokenizer. The weights are a fixed draw."""
    import torch
    import transformers

    save_tiny_llama(folder, chat=False, ascii_only=True)
    (folder / "model.safetensors").unlink()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind, settings = _SMALL[architecture]
    model_class = getattr(transformers, kind)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = model_class(
        model_class.config_class(
            vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **settings
        )
    )
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.normal_(std=0.3)
    torch.random.set_rng_state(state)
    model.save_pretrained(folder)
    return folder
