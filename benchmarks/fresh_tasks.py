"""Invented tasks, three of which the default method was not designed on, judged as the settings of ``judged`` are.

    python -m benchmarks.fresh_tasks --out runs/fresh
    python -m benchmarks.fresh_tasks --out runs/fresh --tasks quiet-shifts --methods METHOD,... --wrong

The texts come from the word lists and sentences of this file and need no data folder.

* ``twelve-offices``: messages to a city, twelve labels; most mention a thing of another office as well. Three
  generators: ``good``; ``careless``, which gives a third of its texts a wrong label; ``formal``, which writes letters.
* ``one-cook``: notes in a cook's book, five labels; half of the words may be of another label. One generator, more
  stereotyped than the cook; a fifth of its labels are wrong.
* ``quiet-shifts``: reports of a warehouse's shifts, 90 % "nothing", 5 % "injury", 5 % "loss"; many quiet ones tell of
  what nearly happened. Two generators, whose texts are equally often of each label: ``plain`` never tells of that;
  ``vivid`` does, and a tenth of its labels are wrong.

A fourth one served, with ``quiet-shifts``, to choose how the default method cleans labels, and confirms nothing:

* ``busy-office``: ``twelve-offices`` with four of its labels, 85 % of the messages under one of them.

Every generator knows a random eight of the twelve phrases of each list. 300 records, a test set of 750 texts, 600 texts
ordered, epsilon 4. The first command prints each method against the mixture with label shares, and the default method
against the cleaned mixture; cells are kept in the folder, and measured once. The second counts wrong labels of what the
methods publish in ``quiet-shifts``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import judged, judged_settings, judged_tables
from benchmarks.judged_settings import MOST_TESTS, Row, Setting
from undersong_common.models.embedding import CachedEmbedder, Embedder, PublicFileCache
from undersong_common.program import entry
from undersong_server.defaults import public_cache_path

SEED = 39
METHODS = (judged_tables.OURS, judged_tables.CLEANED, judged_tables.MIXTURE, judged_tables.PRIVATE)
SEEDS = 16
RECORDS, SAMPLES, POOL = 1000, 600, 1500  # texts of the private file, ordered texts, texts of one generator
KNOWN = 8  # phrases that one generator knows of the twelve of each list
ASIDE = 0.6  # share of messages that mention another office as well
OWN, STEREOTYPED = 0.5, 0.65  # chance that a word of a note is of its dish: in the cook's book, by the generator
NEARLY = 0.4  # share of quiet reports that tell of what nearly happened
THIRD, FIFTH, TENTH = 1 / 3, 0.2, 0.1  # shares of wrong labels

Words = Mapping[str, Sequence[str]]


def words(listed: Mapping[str, str]) -> Words:
    """Splits each line at its commas into a list of words."""
    return {name: line.split(", ") for name, line in listed.items()}


OFFICES = words(
    {
        "roads": "pothole, kerb, crossing, asphalt, speed bump, manhole cover, road sign, cycle lane, pavement, "
        "roundabout, guard rail, cobblestones",
        "lighting": "street lamp, lantern, bulb, light pole, dark underpass, lamp switch, floodlight, spotlight, "
        "park lights, lamp timer, flickering lamp, lit tunnel",
        "waste": "rubbish bin, recycling box, bulky sofa, glass container, compost bag, litter, dumped mattress, "
        "collection lorry, bin lid, sorting leaflet, old fridge, garbage day",
        "parks": "lawn, bench, playground, swing, flower bed, hedge, oak tree, duck pond, picnic table, sandpit, "
        "footpath, fallen branch",
        "water": "water pipe, hydrant, meter reading, brown tap water, low pressure, leak, drain, sewer smell, "
        "fountain, flooded cellar, valve, water bill",
        "noise": "loud music, barking dog, building site, drilling, late party, leaf blower, car alarm, church bells, "
        "fireworks, shouting neighbours, motorbikes, humming fan",
        "parking": "parking ticket, residents' bay, ticket machine, disabled bay, tow truck, parking zone, car park, "
        "delivery van, meter fee, blocked driveway, permit disc, charging bay",
        "building": "planning permission, extension, roof window, fence height, demolition, site plan, garage, "
        "architect's drawing, listed house, scaffold, balcony, surveyor",
        "schools": "school place, lunch menu, head teacher, after-school club, school bus, enrolment form, classroom, "
        "holiday care, kindergarten, homework room, gym hall, exam date",
        "library": "library card, overdue book, reading room, audio book, opening hours, late fee, reservation, "
        "reading group, return slot, magazine shelf, copier, study desk",
        "registry": "passport, birth certificate, identity card, change of address, marriage date, name change, "
        "witness, appointment, fingerprints, photo booth, signature, residence paper",
        "taxes": "dog tax, property tax, reminder letter, instalments, refund, assessment, trade tax, bank transfer, "
        "account number, due date, exemption, notice of fees",
    }
)
ASKED = (
    *("Who looks after the {}?", "There is a problem with the {} again.", "I am writing about the {}."),
    *("Please do something about the {}.", "My question is about the {}.", "Nobody answers me about the {}."),
)
BESIDES = (
    *("Unlike with the {} last year, I hope for an answer.", "I phoned about the {} before, that is settled."),
    *("It is not about the {} this time.", "Your colleagues for the {} sent me to you."),
    *("My neighbour says it has to do with the {}, which I doubt.", "The {} is fine, thank you."),
)
LETTER = (
    *("With reference to the {}, the undersigned requests a written reply.", "Re: {}. We await your decision."),
    *("The matter of the {} remains unresolved and is hereby brought to your notice.",),
)
LETTER_BESIDES = (
    *("Earlier correspondence on the {} is not affected.", "This is without prejudice to the matter of the {}."),
    *("A separate submission concerns the {}.",),
)
GREETINGS = ("Hello,", "Good morning,", "Dear all,", "Hi there,", "To whom it may concern:", "Dear city,")
ENDINGS = ("Thanks.", "I live at the market.", "It has been weeks now.", "Call me after six.", "Kind regards.", "Help!")

DISHES = words(
    {
        "soup": "broth, leek, ladle, simmer, lentils, stock, barley, skim, celery, bay leaf, noodles, bowl",
        "bread": "yeast, knead, crust, rye, loaf, sourdough, proof, oven stone, bran, tin, slash, starter",
        "dessert": "cream, vanilla, sugar, whip, caramel, chocolate, custard, chill, sponge, icing, meringue, berries",
        "salad": "lettuce, vinegar, radish, toss, cucumber, rocket, dressing, croutons, olives, feta, chicory, rinse",
        "preserve": "jar, pickle, brine, seal, jam, pectin, label, cellar, sterilise, chutney, gherkins, lid",
    }
)
NOTES = (
    *("{}, then {} and {}. Mind the {}; more {} than {}.", "First {}. Grandmother took {} with {}, {}, {} and no {}."),
    *(
        "Note for spring: {}, {}, {}; try {} or {} instead of {}.",
        "{} and {} were right, {} too much. Next {}, {}, {}.",
    ),
)

QUIET = (
    *(
        "Two lorries unloaded at gate {n}.",
        "All {n} orders went out before the break.",
        "Handover at aisle {n} on time.",
    ),
    *("Stock count of row {n} finished.", "The night crew swept hall {n}.", "Forklift {n} was charged and parked."),
    *(
        "The scanner at desk {n} was slow.",
        "A driver waited {n} minutes for papers.",
        "{n} pallets were wrapped again.",
    ),
)
BEGUN = {
    "injury": (
        *(
            "A picker stumbled at ramp {n} and",
            "A pallet slipped in aisle {n} and the driver",
            "Somebody from crew {n}",
        ),
        *(
            "A colleague hit gate {n} and",
            "The new man in row {n} fell and",
            "The driver of forklift {n} braked hard and",
        ),
    ),
    "loss": (
        *("The scanner of desk {n}", "A parcel from row {n}", "The cash box of desk {n}", "A pallet for gate {n}"),
        *("Part of the load of trailer {n}", "The key of hall {n}"),
    ),
}
ENDED = words(
    {
        "injury": "sprained a wrist, needed stitches, was taken to hospital, went home in pain, saw the doctor, "
        "cannot lift anything now, bled from the hand, was given first aid, bruised a knee, has a sore back, "
        "is off work for a week, broke a finger",
        "loss": "is gone, was not found again, has been taken by somebody, never arrived, is missing by the papers, "
        "has been reported to the police, cannot be found, vanished in the break, is not on any shelf, "
        "went off with a driver who did not sign, has not been seen since, was stolen",
        "no injury": "went on unhurt, laughed about it, needed no help, was fine after a coffee, had only a fright, "
        "stood up again at once, kept working, had not a scratch, was back in a minute, saw no need for a doctor, "
        "took no harm, waved that all was well",
        "no loss": "seemed gone and lay next door, was missing for an hour only, turned out complete, "
        "came back repaired, had been counted twice, stood in the wrong row, arrived late, was in the other hall, "
        "was lent to the day crew, had the wrong papers, was found under the desk, had been signed for after all",
    }
)


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def message(
    rng: np.random.Generator,
    office: str,
    offices: Words,
    request_templates: Sequence[str] = ASKED,
    aside: Sequence[str] = BESIDES,
) -> str:
    """Writes a message to one office, which may first or last mention a thing of another office."""
    sentences = [pick(rng, request_templates).format(pick(rng, offices[office]))]
    if rng.random() < ASIDE:
        other_office = pick(rng, [name for name in offices if name != office])
        sentences.insert(int(rng.integers(2)), pick(rng, aside).format(pick(rng, offices[other_office])))
    return " ".join([pick(rng, GREETINGS), *sentences, pick(rng, ENDINGS)])


def note(rng: np.random.Generator, dish: str, dishes: Words, own: float) -> str:
    """Writes a note of six words, each from the dish's list with probability ``own``, else from any list."""
    template = pick(rng, NOTES)
    word_dishes = [dish if rng.random() < own else pick(rng, list(dishes)) for _ in range(template.count("{}"))]
    text = template.format(*(pick(rng, dishes[word_dish]) for word_dish in word_dishes))
    return text[0].upper() + text[1:]


def report(rng: np.random.Generator, label: str, endings: Words, nearly: float) -> str:
    """Writes a report of four sentences: one tells of the event, or of what nearly happened on a quiet shift."""
    sentences = [pick(rng, QUIET) for _ in range(4)]
    if label in BEGUN or rng.random() < nearly:
        event = label if label in BEGUN else pick(rng, list(BEGUN))
        ending = pick(rng, endings[event if label in BEGUN else f"no {event}"])
        sentences[int(rng.integers(4))] = f"{pick(rng, BEGUN[event])} {ending}."
    return " ".join(sentence.format(n=int(rng.integers(2, 40))) for sentence in sentences)


def rows(
    rng: np.random.Generator,
    count: int,
    shares: Mapping[str, float],
    write: Callable[[np.random.Generator, str], str],
    wrong_share: float = 0.0,
) -> list[Row]:
    """Returns ``count`` different texts with labels drawn by ``shares``, a share ``wrong`` of them mislabelled."""
    rows_by_text: dict[str, Row] = {}
    while len(rows_by_text) < count:
        label = str(rng.choice(list(shares), p=list(shares.values())))
        text = write(rng, label)
        stated_label = (
            pick(rng, [other_label for other_label in shares if other_label != label])
            if rng.random() < wrong_share
            else label
        )
        rows_by_text.setdefault(text, {"text": text, "label": stated_label})
    return list(rows_by_text.values())


def equal(labels: Sequence[str]) -> dict[str, float]:
    return {label: 1.0 / len(labels) for label in labels}


def draw_phrases(rng: np.random.Generator, lists: Words) -> Words:
    """Draws from each list the phrases that one generator knows."""
    return {name: [phrases[i] for i in rng.permutation(len(phrases))[:KNOWN]] for name, phrases in lists.items()}


def twelve_offices() -> Setting:
    return city(np.random.default_rng([SEED, 1]), equal(list(OFFICES)))


def busy_office() -> Setting:
    return city(np.random.default_rng([SEED, 4]), {"waste": 0.85, "water": 0.05, "parking": 0.05, "taxes": 0.05})


def city(rng: np.random.Generator, shares: Mapping[str, float]) -> Setting:
    """Returns a setting of messages to offices: records have the label ``shares``, generators equal shares."""
    offices, balanced = {name: OFFICES[name] for name in shares}, equal(list(shares))
    good, careless, formal = (draw_phrases(rng, offices) for _ in range(3))
    pools = {
        "good": rows(rng, POOL, balanced, lambda own, label: message(own, label, good)),
        "careless": rows(rng, POOL, balanced, lambda own, label: message(own, label, careless), THIRD),
        "formal": rows(rng, POOL, balanced, lambda own, label: message(own, label, formal, LETTER, LETTER_BESIDES)),
    }
    private, test = (
        rows(rng, count, shares, lambda own, label: message(own, label, offices)) for count in (RECORDS, MOST_TESTS)
    )
    return Setting("a message to the city's offices", private, test, pools, samples=SAMPLES)


def one_cook() -> Setting:
    rng, shares = np.random.default_rng([SEED, 2]), equal(list(DISHES))
    known_words = draw_phrases(rng, DISHES)
    pool = rows(rng, POOL, shares, lambda own, label: note(own, label, known_words, STEREOTYPED), FIFTH)
    private, test = (
        rows(rng, count, shares, lambda own, label: note(own, label, DISHES, OWN)) for count in (RECORDS, MOST_TESTS)
    )
    return Setting("a note in a cook's book", private, test, {"stereotyped": pool}, samples=SAMPLES)


def quiet_shifts() -> Setting:
    rng, shares = np.random.default_rng([SEED, 3]), {"nothing": 0.9, "injury": 0.05, "loss": 0.05}
    balanced = equal(list(shares))
    plain, vivid = (draw_phrases(rng, ENDED) for _ in range(2))
    pools = {
        "plain": rows(rng, POOL, balanced, lambda own, label: report(own, label, plain, 0.0)),
        "vivid": rows(rng, POOL, balanced, lambda own, label: report(own, label, vivid, NEARLY), TENTH),
    }
    private, test = (
        rows(rng, count, shares, lambda own, label: report(own, label, ENDED, NEARLY))
        for count in (RECORDS, MOST_TESTS)
    )
    return Setting("the report of a shift in a warehouse", private, test, pools, samples=SAMPLES)


TASKS: dict[str, Callable[[], Setting]] = {
    "twelve-offices": twelve_offices,
    "one-cook": one_cook,
    "quiet-shifts": quiet_shifts,
    "busy-office": busy_office,
}
THREE = tuple(TASKS)[:3]


def find_event(text: str) -> str:
    """Returns the event that a report tells of, such as "injury"; "no injury" if it nearly happened; "" if none."""
    events = [name for name, endings in ENDED.items() if any(f" {ending}." in text for ending in endings)]
    return events[0] if events else ""


def wrong_labels(world: judged.World, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns a table of wrong labels in each method's corpora of ``quiet-shifts``, as means over seeds."""
    lines = []
    for method in methods:
        counts = []
        for seed in seeds:
            texts, labels, _ = judged.corpus(world, method, seed)
            pairs = [(find_event(text), label) for text, label in zip(texts, labels, strict=True)]
            near_labels = [label for event, label in pairs if event.startswith("no ")]
            event_labels = [label for event, label in pairs if event in BEGUN]
            right_count = sum(label == (event if event in BEGUN else "nothing") for event, label in pairs)
            missed_count, alarm_count = event_labels.count("nothing"), len(near_labels) - near_labels.count("nothing")
            counts.append(
                (len(pairs), len(pairs) - right_count, len(event_labels), missed_count, len(near_labels), alarm_count)
            )
        lines.append([f"`{method}`", *(f"{mean:.0f}" for mean in np.mean(counts, axis=0))])
    heads = ("method", "texts", "wrong labels", "events", 'under "nothing"', "near misses", "under an event")
    return judged_tables.table(heads, lines)


def main(argv: list[str] | None = None) -> int:
    """Measures what is missing and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fresh_tasks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/fresh"), help="where tasks and cells are kept")
    parser.add_argument("--tasks", default=",".join(THREE), help="separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=judged.FIRST_SEED)
    parser.add_argument("--wrong", action="store_true", help="counts wrong labels of quiet-shifts, judges nothing")
    parser.add_argument("--quick", action="store_true", help="the task with one generator, two seeds")
    options = parser.parse_args(argv)
    if options.quick:
        options.tasks, options.seeds = "one-cook", 2
    methods, seeds = options.methods.split(","), range(options.first_seed, options.first_seed + options.seeds)
    embed = CachedEmbedder(Embedder.load(), PublicFileCache(public_cache_path(os.environ))).encode
    files = {name: judged_settings.write(name, TASKS[name](), options.out) for name in options.tasks.split(",")}
    if options.wrong:
        print(wrong_labels(judged.World(files["quiet-shifts"], embed), methods, seeds))
        return 0
    judged.measure(files, methods, seeds, options.out, embed)
    cells = {judged_tables.key(row): row for row in judged_settings.json_lines(options.out / "cells.jsonl")}
    against_mixture = [(method, judged_tables.MIXTURE) for method in methods if method != judged_tables.MIXTURE]
    for ours, other in (*against_mixture, (judged_tables.OURS, judged_tables.CLEANED)):
        if differences := judged_tables.pair_by_seed(cells, ours, other, list(files), seeds):
            print(f"{ours} minus {other}\n\n{judged_tables.comparison_table(differences)}\n")
    return 0


if __name__ == "__main__":
    entry.run(main)
