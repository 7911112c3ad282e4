"""A BERT of one layer over a few words: what a local model folder holds, small enough for a test."""

import json
from collections.abc import Sequence
from pathlib import Path


def write_bert(folder: Path, words: Sequence[str]) -> Path:
    """Model and tokenizer in ``folder``, the weights the same at every call; every other word is unknown to it."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(folder)
    return folder


def fails_at_last_word(folder: Path) -> None:
    """Takes the last word's row out of the weights: the model raises at every text that holds it."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = weights[name][:-1].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "vocab_size": len(weights[name])}))


def write_embedder(folder: Path, words: Sequence[str]) -> Path:
    """A sentence-transformers model around that BERT: the mean of its tokens, normalised; 16 coordinates."""
    write_bert(folder, words)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def write_numpy_bert(folder: Path, *, size: int, window: int) -> Path:
    """A BERT of one layer over letters for :class:`undersong_common.models.numpy_bert.NumpyBert`, without torch."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_type": "bert", "hidden_act": "gelu", "num_attention_heads": 4, "num_hidden_layers": 1}
    settings |= {"pad_token_id": 0, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": window}))
    shapes = {
        "embeddings.word_embeddings.weight": (len(words), size),
        "embeddings.position_embeddings.weight": (window, size),
        "embeddings.token_type_embeddings.weight": (2, size),
    }
    layers = {f"attention.self.{part}": (size, size) for part in ("query", "key", "value")}
    layers |= {"attention.output.dense": (size, size), "intermediate.dense": (2 * size, size)}
    layers |= {"output.dense": (size, 2 * size)}
    shapes |= {f"encoder.layer.0.{name}.weight": shape for name, shape in layers.items()}
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {f"encoder.layer.0.{name}.bias": np.zeros(shape[0], np.float32) for name, shape in layers.items()}
    norms = ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output")
    weights |= {f"{place}.LayerNorm.weight": np.ones(size, np.float32) for place in norms}
    weights |= {f"{place}.LayerNorm.bias": np.zeros(size, np.float32) for place in norms}
    save_file(weights, folder / "model.safetensors")
    return folder
