"""Makes a transformers folder of a GGUF file, for `kind = "transformers"`, tuning and hidden states.

    pip install gguf
    python -m benchmarks.gguf_folder gemma-3-270m.gguf FOLDER

transformers reads the weights (de-quantised to float32). Its own reading of a tokenizer of scored pieces ("llama" in
the file, as Gemma's) splits "hello" into "hel" and "lo", and the model then hardly follows a prompt. So the tokenizer
is made here, as SentencePiece works: pieces are joined in the order of their scores. The script checks that common
words are one piece before it writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

NORMAL, CONTROL = 1, 3  # a piece's type in the file
SPACE = "\u2581"
WHOLE = ("hello", "world", "card", "patient")  # words that a model of English has as one piece


def read_pieces(path: Path) -> tuple[list[str], list[float], list[int]]:
    """Returns the pieces of the file's tokenizer with their scores and types."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokenizer_model = bytes(fields["tokenizer.ggml.model"].parts[-1]).decode()
    if tokenizer_model != "llama":
        raise SystemExit(
            f"{path}: its tokenizer is {tokenizer_model!r}; this script makes those of scored pieces (llama)"
        )
    text, scores, types = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    return (
        [bytes(text.parts[i]).decode("utf-8") for i in text.data],
        [float(scores.parts[i][0]) for i in scores.data],
        [int(types.parts[i][0]) for i in types.data],
    )


def list_merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Returns every pair of pieces that together are a piece, in falling order of the score of that piece."""
    numbers = {token: number for number, token in enumerate(tokens)}
    scored_pairs = []
    for token, score, piece_type in zip(tokens, scores, types, strict=True):
        cuts = range(1, len(token)) if piece_type == NORMAL else ()
        pairs = [(token[:cut], token[cut:]) for cut in cuts if token[:cut] in numbers and token[cut:] in numbers]
        pairs.sort(key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
        scored_pairs += [(score, pair) for pair in pairs]
    scored_pairs.sort(key=lambda each: -each[0])  # stable: pairs of one piece stay in their order
    return [pair for _, pair in scored_pairs]


def make_tokenizer(path: Path) -> Any:
    """Returns the file's tokenizer as a tokenizer of transformers. Exits if a common word is several pieces."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens, scores, types = read_pieces(path)
    numbers = {token: number for number, token in enumerate(tokens)}
    piece_tokenizer = Tokenizer(
        models.BPE(numbers, list_merges(tokens, scores, types), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    piece_tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    piece_tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    piece_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = [token for token, piece_type in zip(tokens, types, strict=True) if piece_type == CONTROL]
    piece_tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    begin_token = ("<bos>", numbers["<bos>"])
    piece_tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[begin_token])
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=piece_tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    split_words = [
        word for word in WHOLE if word in numbers and fast_tokenizer(word)["input_ids"][1:] != [numbers[word]]
    ]
    if split_words:
        raise SystemExit(f"{path}: the tokenizer splits {', '.join(split_words)}, which the file has whole")
    return fast_tokenizer


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="GGUF")
    parser.add_argument("folder", type=Path, help="to write")
    arguments = parser.parse_args()
    folder_tokenizer = make_tokenizer(arguments.file)
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        arguments.file.parent, gguf_file=arguments.file.name, dtype=torch.float32
    )
    model.save_pretrained(arguments.folder)
    folder_tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
