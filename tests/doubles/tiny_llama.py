"""A real Llama of some thousand weights with a tokenizer trained on a few sentences, made and saved here."""

from pathlib import Path

SENTENCES = [
    "The patient reports chest pain since this morning and no fever.",
    "He came in with a sore left knee after a fall at work.",
    "My card was declined at the till, what can I do?",
    "Write a nurse's triage note of the category cardiac.",
    "Reply with the text only: no title, no quotes, no comment.",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_ASCII = "".join(map(chr, range(0x21, 0x7F))) + "ĠĊ"  # with a byte-level tokenizer's letters for space and line break
SPECIAL = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]


def save_tiny_llama(
    folder: Path,
    *,
    chat: bool = True,
    positions: int = 512,
    width: int = 32,
    tied: bool = False,
    ascii_only: bool = False,
) -> Path:
    """Writes model, tokenizer and a generation config that samples. The weights are a fixed draw.

    Args:
        folder: made if missing.
        chat: gives the tokenizer a chat template.
        positions: longest context in tokens.
        width: of the hidden states; 4-bit weights want a multiple of 64.
        tied: tokens are written by the weights that they are read by.
        ascii_only: no token is a part of a character, as half of one drawn at random would be.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    letters = [letter for letter in pre_tokenizers.ByteLevel.alphabet() if not ascii_only or letter in _ASCII]
    raw.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=SPECIAL,
            initial_alphabet=letters,
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL,
        model_max_length=positions,
        model_input_names=["input_ids", "attention_mask"],
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
            tie_word_embeddings=tied,
        )
    )
    torch.random.set_rng_state(state)
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    return folder
