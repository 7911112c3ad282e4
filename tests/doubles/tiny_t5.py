"""A real T5 of some thousand weights, with the tokenizer of the tiny Llama."""

from pathlib import Path

from tests.doubles.tiny_llama import save_tiny_llama


def save_tiny_t5(folder: Path, *, ascii_only: bool = False, seed: int = 0) -> Path:
    """Writes model and tokenizer. The weights are the draw of this seed."""
    import torch
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    save_tiny_llama(folder, chat=False, ascii_only=ascii_only)
    (folder / "model.safetensors").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=0,
            decoder_start_token_id=0,
            initializer_factor=8.0,
        )
    )
    torch.random.set_rng_state(state)
    model.save_pretrained(folder)
    return folder
