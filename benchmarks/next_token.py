"""Accuracy of the next token: a small causal model, trained on a corpus, on real texts (DPGA-TextSyn, D.2, Table 2).

The paper fine-tunes BERT_small with a causal mask. A local folder of such a model is trained likewise; without one, a
model of two layers is trained from nothing on the corpus's own tokens, which judges small corpora of short texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undersong_common.models import model_files
from undersong_common.program.library_threads import one_library_thread

WIDTH, LAYERS, HEADS = 128, 2, 2
EPOCHS, BATCH, DECAY = 10, 32, 0.01
RATES = {"pre-trained": 3e-4, "from nothing": 1e-3}  # the paper's rate, and one at which ten epochs suffice
UNKNOWN, IGNORED = 0, -100


def accuracy(
    corpus: Sequence[str], test: Sequence[str], *, folder: Path | None = None, tokens: int = 64, seed: int = 0
) -> float:
    """Returns the share of the tokens of ``test`` that the model finds likeliest after those before them, 0 to 1.

    Args:
        folder: a local BERT; None trains a new model, to which a token that the corpus lacks is unknown, and so wrong.
        tokens: longest text that is read.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertLMHeadModel

    source = folder or model_files.model_folder(model_files.PACKAGED)
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    corpus_ids, test_ids = (
        tokenizer(list(texts), truncation=True, max_length=tokens)["input_ids"] for texts in (corpus, test)
    )
    with torch.random.fork_rng(), one_library_thread():
        torch.manual_seed(seed)
        if folder is None:
            token_numbers = {
                token: number + 1 for number, token in enumerate(sorted({t for text in corpus_ids for t in text}))
            }
            corpus_ids, test_ids = (
                [[token_numbers.get(t, UNKNOWN) for t in text] for text in texts] for texts in (corpus_ids, test_ids)
            )
            shape = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH}
            config = BertConfig(vocab_size=len(token_numbers) + 1, hidden_size=WIDTH, is_decoder=True, **shape)
            model = BertLMHeadModel(config)
        else:
            model = BertLMHeadModel.from_pretrained(folder, is_decoder=True, local_files_only=True)
        rate = RATES["from nothing" if folder is None else "pre-trained"]
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY)
        for _ in range(EPOCHS):
            model.train()
            for rows in torch.randperm(len(corpus_ids)).split(BATCH):
                optimiser.zero_grad(set_to_none=True)
                _, next_tokens, logits = _next(model, [corpus_ids[row] for row in rows])
                torch.nn.functional.cross_entropy(logits.transpose(1, 2), next_tokens, ignore_index=IGNORED).backward()
                optimiser.step()
        model.eval()
        right_count = token_count = 0
        with torch.inference_mode():
            for at in range(0, len(test_ids), BATCH):
                has_next, next_tokens, logits = _next(model, test_ids[at : at + BATCH])
                is_right = (logits.argmax(2) == next_tokens) & (next_tokens != UNKNOWN if folder is None else has_next)
                right_count, token_count = (
                    right_count + int((is_right & has_next).sum()),
                    token_count + int(has_next.sum()),
                )
    return right_count / max(1, token_count)


def _next(model: Any, texts: Sequence[Sequence[int]]) -> tuple[Any, Any, Any]:
    """Returns mask and numbers of the next tokens, [n, length - 1], and logits, [n, length - 1, tokens]."""
    import torch

    rows = [torch.tensor(text) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    has_next = mask[:, 1:].bool()
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    return has_next, ids[:, 1:].masked_fill(~has_next, IGNORED), logits
