"""The share of a real model's raw answers, in three languages, that the product's rules accept as texts.

    python -m benchmarks.kept_share raw.jsonl --url http://127.0.0.1:8080/v1 --texts 30 --seed 1
    python -m benchmarks.kept_share raw.jsonl --show 20
    PYTHONPATH=OTHER/server:OTHER/common python OTHER-COPY/kept_share.py raw.jsonl

The first command asks for what the file lacks (``--texts`` for each of four tasks, 160 tokens at temperature 1, by the
prompts of this version, their kinds in turn) and appends every answer as it comes. All commands then read the file's
answers and print what was kept, by task and by kind of prompt, and the faults. The third one reads them with the rules
of another version of the project, in the folder OTHER. A model is served by
``benchmarks.live_model``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.reading import read
from undersong_server.prompts.rendering import Prompts, TaskWords

BANKING = (
    *("activate_my_card", "age_limit", "card_arrival", "cash_withdrawal_charge", "lost_or_stolen_card"),
    *("exchange_rate", "refund_not_showing_up", "verify_my_identity", "top_up_failed", "country_support"),
)
TASKS = {
    "banking": ("English", "a customer's question to an online bank", BANKING),
    "triage": (
        "English",
        "a nurse's triage note in an emergency department",
        ("cardiac", "trauma", "respiratory", "neurological"),
    ),
    "german": ("German", "eine kurze Pflegenotiz aus einer Notaufnahme", ("Herz", "Unfall", "Atmung", "Nerven")),
    "french": (
        "French",
        "une courte note d'infirmier aux urgences",
        ("cardiaque", "traumatisme", "respiratoire", "neurologique"),
    ),
}
EXAMPLES = {
    "banking": ("My card has not arrived yet. It was sent nine days ago.", "Why was I charged for taking out cash?"),
    "triage": (
        "54M, chest tightness since breakfast, pale, BP 150/90. Seen at once.",
        "Fell from a ladder, left wrist swollen. Pain 6 of 10. Splint, x-ray ordered.",
    ),
    "german": (
        "Patientin, 71, seit dem Morgen Druck auf der Brust, blass. Arzt gerufen.",
        "Junge, 9, vom Rad gestürzt. Platzwunde an der Stirn, wach, klagt über Übelkeit.",
    ),
    "french": (
        "Homme de 60 ans, essoufflé depuis hier soir, lèvres bleutées. Oxygène mis en route.",
        "Chute dans l'escalier, cheville droite gonflée. Douleur 5 sur 10. Radio demandée.",
    ),
}
TERMS = {
    "banking": ("fee", "last Friday"),
    "triage": ("pulse", "daughter"),
    "german": ("Puls", "Tochter"),
    "french": ("pouls", "fille"),
}
# Kinds of prompts that ask for one text, and the texts or terms that they show
KINDS: dict[str, tuple[str, ...]] = {
    "zero_shot": (),
    "random": (),
    "persona": (),
    "author": (),
    "examples": ("good",),
    "contrast": ("good", "bad"),
    "paraphrase": ("parents",),
    "rewrite": ("parents",),
    "fill_in": ("parents",),
    "cross": ("parents",),
    "keyphrases": ("terms", "good"),
    "metadata": ("terms",),
}
SHOWN = ("good", "bad", "parents", "terms", "told")
TOKENS, PARALLEL, TIMEOUT_S = 160, 4, 3600.0  # a model beside busy programs writes a token in seconds


def make_orders(texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields ``texts`` orders with their prompts for each task, the tasks in turn."""
    for text_number in range(texts):
        for task, (language, description, labels) in TASKS.items():
            number = len(TASKS) * text_number + list(TASKS).index(task)
            label = labels[
                (text_number + text_number // len(KINDS)) % len(labels)
            ]  # so that each kind gets every label in turn
            kind = list(KINDS)[text_number % len(KINDS)]
            shown: dict[str, Any] = {name: TERMS[task] if name == "terms" else EXAMPLES[task] for name in KINDS[kind]}
            if "bad" in shown:
                shown["good"], shown["bad"] = EXAMPLES[task][:1], EXAMPLES[task][1:]
            if kind in ("paraphrase", "rewrite", "fill_in"):
                shown["parents"] = EXAMPLES[task][:1]
            prompts = Prompts(TaskWords(description=description, labels=labels, language=language))
            prompt = prompts.render(kind, label=label, number=100_000 * seed + number, **shown)
            fields = {"task": task, "kind": kind, "label": label, "system": prompt.system, "user": prompt.user}
            yield {"n": number, "seed": 100_000 * seed + number, **fields, **shown, "told": prompt.told}


def ask(url: str, order: dict[str, Any]) -> dict[str, Any]:
    """Asks the model at ``url`` for an order's text; returns the body of its chat completion."""
    turns = [{"role": role, "content": order[role]} for role in ("system", "user") if order[role]]
    body = {"messages": turns, "max_tokens": TOKENS, "temperature": 1.0, "seed": order["seed"]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        completion: dict[str, Any] = json.load(answer)
    return completion


def collect(file: Path, url: str, texts: int, seed: int) -> None:
    """Appends the answers that the file lacks, each as it comes."""
    rows = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    answered = {json.loads(row)["n"] for row in rows}
    missing_orders = [order for order in make_orders(texts, seed) if order["n"] not in answered]
    with ThreadPoolExecutor(PARALLEL) as pool, file.open("a", encoding="utf-8") as raw:
        for order, body in zip(missing_orders, pool.map(lambda order: ask(url, order), missing_orders), strict=True):
            raw.write(json.dumps({**order, "body": body}, ensure_ascii=False) + "\n")
            raw.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", help="asks for what the file lacks")
    parser.add_argument("--texts", type=int, default=30, help="of each task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="kept texts")
    arguments = parser.parse_args()
    if arguments.url:
        collect(arguments.file, arguments.url, arguments.texts, arguments.seed)
    shown_texts = 0
    options = {"line_breaks": False} if "line_breaks" in inspect.signature(read).parameters else {}
    kept, total, faults = Counter[str](), Counter[str](), Counter[str]()  # by task and by kind
    for row in map(json.loads, arguments.file.read_text(encoding="utf-8").splitlines()):
        choice = row["body"]["choices"][0]
        text, is_cut = choice["message"]["content"] or "", choice["finish_reason"] == "length"
        answer = Completion(text, finish="length" if is_cut else "")
        shown: dict[str, Any] = {name: tuple(row.get(name, ())) for name in SHOWN}
        request = GenerationRequest(row["kind"], row["label"], row["user"], 1, system=row["system"], **shown)
        reading = read(answer, request, language=TASKS[row["task"]][0], **options)
        for part in (row["task"], row["kind"]):
            total[part] += 1
            kept[part] += not reading.fault
        faults[reading.fault] += bool(reading.fault)
        if not reading.fault and shown_texts < arguments.show:
            shown_texts += 1
            print(row["task"], "|", reading.text)
    print(json.dumps({"kept": dict(kept), "of": dict(total), "faults": {name: n for name, n in faults.items() if n}}))


if __name__ == "__main__":
    main()
