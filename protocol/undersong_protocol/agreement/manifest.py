"""The manifest: the terms of a run, which every party signs before it begins (docs/secagg.md, "Manifest")."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PeerFault, PrivacyRefusal
from undersong_common.printable import counted, joined, name_fault, printable, repeated
from undersong_protocol.agreement.enrolment import check_party_name
from undersong_protocol.agreement.full_names import TASK_KEY, full_names_fault
from undersong_protocol.agreement.plan import PLAN_ANEW, Plan
from undersong_protocol.limits import LARGEST_LABELS, LARGEST_MANIFEST_BYTES, LARGEST_PARTIES, LARGEST_SUMS, check_size
from undersong_protocol.secagg.keys import check_identity, verified
from undersong_protocol.secagg.parameters import Member, SumParameters

VERSION = 3
# People compare, type and copy a run's name, so it has only characters that everybody can type.
RUN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,118}[A-Za-z0-9])?")
PLAN_WORDS = "; this plan's words: "  # precedes the nine words of the plan at the end of a sentence
LONGEST_NAME = 120  # characters of the name of a run, a task, a method, a label, a party or a private sum
LONGEST_DESCRIPTION = 20_000


@dataclass(frozen=True)
class Manifest:
    """The terms of one run: its parties, task and plan. A run needs equal bytes of it at every party.

    Attributes:
        run: the run's name, unique at the coordinator.
        task: public words for the people who decide: name, description and labels, and optionally ``purpose``,
            ``publication`` (place where the data set is published, its licence and makers), ``generators`` (who writes
            the texts) and ``columns`` (attributes beside the text that the run asks about).
        method: the method's name, for information; only the plan is binding.
        embedder: SHA-256 (hex) of the embedding model that every party must hold.
        roster: the parties with their Ed25519 identity keys, sorted by name.
        plan: the private sums and their cost.
    """

    run: str
    task: Mapping[str, Any]
    method: str
    embedder: str
    roster: tuple[Member, ...]
    plan: Plan

    def to_bytes(self) -> bytes:
        """Returns the manifest as canonical JSON."""
        return canonical_json(
            {
                "version": VERSION,
                "run": self.run,
                "task": dict(self.task),
                "method": self.method,
                "embedder": self.embedder,
                "roster": [{"name": member.name, "identity": member.identity.hex()} for member in self.roster],
                "plan": self.plan.to_json(),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Parses a manifest and checks its form. Raises PrivacyRefusal for a malformed one.

        Equal bytes give the same object, so that a thousand simulated parties read and hold one roster of a thousand.
        """
        check_size("bytes in its manifest", len(data), LARGEST_MANIFEST_BYTES)
        return cls._parse_bytes(data)

    @classmethod
    @lru_cache(maxsize=2)
    def _parse_bytes(cls, data: bytes) -> "Manifest":
        try:
            manifest_json = json.loads(data)
            _check_counts(manifest_json)
            version = manifest_json["version"]
            if version != VERSION:
                raise PrivacyRefusal(
                    f"the manifest has version {printable(str(version), 20)}, this program speaks {VERSION}",
                    "run the same version of Undersong at the coordinator and at every party",
                )
            manifest = cls(
                run=str(manifest_json["run"]),
                task=manifest_json["task"],
                method=str(manifest_json["method"]),
                embedder=str(manifest_json["embedder"]),
                roster=tuple(
                    Member(str(member_json["name"]), bytes.fromhex(member_json["identity"]))
                    for member_json in manifest_json["roster"]
                ),
                plan=Plan.from_json(manifest_json["plan"]),
            )
            is_canonical = manifest.to_bytes() == data
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise PrivacyRefusal(f"the manifest cannot be read ({type(error).__name__})", PLAN_ANEW) from None
        if not is_canonical:
            raise PrivacyRefusal("the manifest is not written as canonical JSON", PLAN_ANEW)
        manifest.check_names()
        return manifest

    def check_names(self) -> None:
        """Raises PrivacyRefusal for a malformed task, too many generators or columns, or a name or sentence that is
        too long or has invisible characters.

        It is called wherever a manifest is read, so that no such name is ever stored, shown or signed.
        """
        task = self.task if isinstance(self.task, Mapping) else {}
        labels, generators, columns = (task.get(task_key, ()) for task_key in ("labels", "generators", "columns"))
        sentences = {key: task.get(key, "") for key in ("description", "purpose", "publication")}
        are_lists = all(isinstance(task_entries, (list, tuple)) for task_entries in (labels, generators, columns))
        if not are_lists or not all(isinstance(sentence, str) for sentence in sentences.values()):
            raise PrivacyRefusal(
                "in the manifest's task, labels, generators or columns are no list, or description, purpose or"
                " publication is no text",
                PLAN_ANEW,
            )
        check_size("generators in its manifest", len(generators), LARGEST_LABELS)
        check_size("columns in its manifest", len(columns), LARGEST_LABELS)
        for key, sentence in sentences.items():
            if len(sentence) > LONGEST_DESCRIPTION:
                raise PrivacyRefusal(
                    f"the task's {key} has {len(sentence)} characters, {LONGEST_DESCRIPTION} are allowed",
                    "have the operator shorten it in the task file",
                )
        names_by_place: list[tuple[str, object]] = [
            ("the run's name", self.run),
            ("the task's name", task.get("name")),
            ("the name of the run that it revises", task.get("revises", self.run)),
            ("the method's name", self.method),
            ("the embedder's hash", self.embedder),
            *((f"label {number}", label) for number, label in enumerate(labels, 1)),
            *((f"generator {number}", generator) for number, generator in enumerate(generators, 1)),
            *((f"column {number}", column) for number, column in enumerate(columns, 1)),
            *((f"the name of party {number}", member.name) for number, member in enumerate(self.roster, 1)),
        ]
        for sum_number, planned in enumerate(self.plan.sums, 1):
            names_by_place.append((f"the name of private sum {sum_number}", planned.name))
            names_by_place.append((f"the statistic of sum {sum_number}", planned.statistic))
        for name_place, name in names_by_place:
            if name_problem := name_fault(name, LONGEST_NAME):
                raise PrivacyRefusal(
                    f"{name_place} {name_problem}: {printable(str(name), 60)!r}", "choose a name that people can read"
                )
        if fault := full_names_fault(task.get(TASK_KEY, {}), [member.name for member in self.roster]):
            raise PrivacyRefusal(
                f"the full names of the hospitals {fault}", "have the operator correct them", code="full-names"
            )
        if not RUN_NAME.fullmatch(self.run):
            raise PrivacyRefusal(
                f"the run's name {printable(self.run, 60)!r} is too long or has a character that is not allowed in it",
                "use letters, digits, spaces, points, hyphens and underscores of ASCII, 120 at most",
                code="invalid-name",
            )
        for member in self.roster:
            # Enrolment has the same rule, so that no two names look alike and none holds the separator of a list.
            try:
                check_party_name(member.name)
            except ConfigurationError as error:
                raise PrivacyRefusal(error.problem, error.remedy, code=error.code) from None

    @cached_property
    def hash(self) -> bytes:
        """Hash of the manifest, 32 bytes: parties sign it, and every private sum's session id (sid) contains it."""
        return tagged_hash("undersong manifest", self.to_bytes())

    @property
    def labels(self) -> tuple[str, ...]:
        """The task's labels, in order; () if the task has no labels."""
        return tuple(self.task.get("labels", ()))

    @property
    def full_names(self) -> dict[str, str]:
        """Full names of hospitals by party, in the operator's words; {} where the plan states none."""
        return dict(self.task.get(TASK_KEY, {}))

    def sum_parameters(self, name: str, attempt: int) -> SumParameters:
        """Returns the secure-aggregation parameters of one attempt at the private sum ``name``."""
        return self._cached_parameters(name, attempt)

    @cached_property
    def _cached_parameters(self) -> Callable[[str, int], SumParameters]:
        """:meth:`_compute_parameters` with a cache, because simulated parties ask for the same few attempts."""
        return lru_cache(maxsize=4)(self._compute_parameters)

    def _compute_parameters(self, name: str, attempt: int) -> SumParameters:
        planned_sum = self.plan[name]
        quorum = self.plan.quorum
        return SumParameters(
            manifest_hash=self.hash,
            run=self.run,
            query=name,
            attempt=attempt,
            roster=self.roster,
            threshold=quorum.threshold,
            tolerated_dropouts=quorum.tolerated_dropouts,
            colluders=quorum.colluders,
            dimension=planned_sum.dimension,
            modulus_bits=planned_sum.modulus_bits,
            sigma=planned_sum.drawn_sigma_integer,
            law=planned_sum.law,
            post_quantum=quorum.post_quantum,
        )

    def verify(self) -> None:
        """Recomputes every binding figure of the plan. Raises PrivacyRefusal that names the first wrong one."""
        checked_names = self._checked_names
        if len(checked_names) != self.plan.quorum.parties:
            roster_size = counted(len(checked_names), "party", "parties")
            raise PrivacyRefusal(
                f"the manifest's roster has {roster_size}, its plan {self.plan.quorum.parties}", PLAN_ANEW
            )
        if repeated_labels := repeated(self.labels):
            raise PrivacyRefusal(
                f"the manifest's task names the label {printable(repeated_labels[0], 60)!r} more than once",
                "have the operator name each label of task.labels once",
            )
        self.plan.verify()
        try:
            for planned in self.plan.sums:
                self.sum_parameters(planned.name, attempt=0)
        except ConfigurationError as error:
            raise PrivacyRefusal(error.problem, error.remedy, code=error.code) from None

    @cached_property
    def _checked_names(self) -> list[str]:
        """The roster's names, checked once together with its keys: simulated parties share one roster of a thousand.

        Raises PrivacyRefusal for names that repeat or are not sorted, and for a key that repeats or is of low order.
        """
        member_names = [member.name for member in self.roster]
        if repeated_names := repeated(member_names):
            raise PrivacyRefusal(f"the manifest's roster names the party {repeated_names[0]} more than once", PLAN_ANEW)
        if member_names != sorted(member_names):
            raise PrivacyRefusal("the manifest's roster is not sorted by the parties' names", PLAN_ANEW)
        if len({member.identity for member in self.roster}) != len(member_names):
            shared_key = repeated(member.identity for member in self.roster)[0]
            sharing_names = [member.name for member in self.roster if member.identity == shared_key]
            raise PrivacyRefusal(
                f"the parties {joined(sharing_names)} of the manifest's roster share one identity key",
                "have each of them enrolled with a key of its own",
            )
        for member in self.roster:
            try:
                check_identity(member.identity)
            except ValueError:
                raise PrivacyRefusal(
                    f"the identity of party {member.name} is no Ed25519 key of large order: anybody could sign in its"
                    " name",
                    "have the party enrolled with a key of its own",
                ) from None
        return member_names

    def sign(self, identity: Ed25519PrivateKey) -> bytes:
        return identity.sign(self.hash)

    def check_signatures(self, signatures: Mapping[str, bytes]) -> None:
        """Checks that every party of the roster signed this manifest. Raises PeerFault that names a party that did not.

        Args:
            signatures: Ed25519 signature (64 bytes) by party.
        """
        for member in self.roster:
            try:
                verified(member.identity, self.hash, signatures.get(member.name, b""))
            except (InvalidSignature, ValueError):
                raise PeerFault(
                    member.name, "has not signed this manifest", "propose the manifest to every party again"
                ) from None


def _check_counts(manifest_json: Mapping[str, Any]) -> None:
    """Checks the lengths of a parsed manifest's lists before anything is built from them.

    Raises PrivacyRefusal for more parties, private sums or labels than any run may have.
    """
    for entry_kind, entries, largest_count in (
        ("parties", manifest_json["roster"], LARGEST_PARTIES),
        ("private sums", manifest_json["plan"]["sums"], LARGEST_SUMS),
        ("labels", manifest_json["task"].get("labels", ()), LARGEST_LABELS),
    ):
        check_size(entry_kind, len(entries), largest_count)


# A plan's hash as nine words, short enough for a telephone: what ``preview`` shows and ``approve`` takes.
# The words stand for 90 bits. A coordinator chooses what it proposes and may try many plans until the words of one
# suit it, so each try is made to cost one scrypt (16 MiB, some 0.05 s of a core): another plan for given words takes
# 2^90 of these, two plans with the same words 2^45, some 50 000 core-years. Neither serves at one party: it approves
# by the whole hash, and refuses a plan whose words are those of another plan that was proposed to it
# (``consent.approvals``).

COUNT = 9  # words that stand for one plan
BITS = 10  # bits that one word of a plan's words stands for
_COST = {"n": 2**14, "r": 8, "p": 1, "maxmem": 2**26}

# No two words begin with the same four letters or differ in one letter only.
_LIST = """
acid acorn action adapt adobe adult advice aerial affair agenda agree airport alarm album alert almond alpine
already amber amount amuse anchor angle animal answer antler anvil apple apron arcade arena armor army aroma around
artist ascend ashore athlete atlas atom attic author autumn avenue average avocado awake baby bacon badge bagel
bakery balcony bamboo banana bandage banjo barley basket batch battery beam beard beauty beaver bedroom begin bell
bench beret berry bicycle binder birch biscuit bishop blade blanket blend blimp block blossom boat bobbin body
boiler bold bonfire bonus border bottle boulder bounce bowl boxer bracket brain branch breeze brick bridge bright
broad bronze brook brother brown brush bubble bucket buffalo bugle build bulb bundle bunker burger burrow busy buyer
buzzer cabin cable cactus cafe calm camera canal candle canoe canvas canyon captain caramel carbon cargo carpet
carrot cashew castle catalog cavern cedar celery cement center ceramic chain chalk champion chapel chart cheese
cherry chess chicken chimney choice church cider cigar cinema circle citizen city civil claim clay clean clever
cliff climb cloud club coach coast cobalt cobra cocoa code coffee coil collar color column comet concert condor
control cookie copper coral corner cosmic cottage country cousin cover cradle crane crater cream credit crew cricket
crisp crocus crop cruise crystal cube cuckoo cuff culture cupboard curtain cushion custom cycle cymbal cypress daily
dance darling data daughter dawn decade decoy denim dentist depot deputy device dialog diamond diary diesel dinner
diploma dish ditch dodge dolphin domain donkey donor double dove dragon drama drawer dress drift drink driver drum
dryer duck dugout dune duplex dusty dwarf dynamo eager eagle early earth east echo eclipse editor elbow elder
elegant elephant elite embassy emerald empire enamel energy engine enjoy entry envelope episode eraser escape essay
estate ethics evening example exit exotic expert fabric face falcon family famous fancy farmer fashion faucet
feather fence fennel festival fiber fiction fiddle field figure filter final finger fire fitness flag flame flavor
fleet flight flint float fluid flute foam focus folk font forest fortune fossil freight fresh friend frog frost
fruit fuel furnace future gadget galaxy gallery game garden garlic gather gauge general genius gentle geology
gesture giant gift giggle giraffe glacier glad glass glide globe glow glue goal goblet golf gondola good goose
gorilla gospel grace gravel green grid grill grocer group grove growth guard guitar gust gutter gymnast habit half
hallway hammer hamster hand happy harbor harvest haven hawk hazel head heart heavy hedge height helmet help herb
hiccup high hiker hill hinge hippo history hobby hockey holiday hollow home honey hoof horizon hotel house huddle
human humble husky hybrid hydrogen iceberg icicle icon idea identity igloo image inch indigo inlet insect inside
iris island item ivory jacket jaguar jargon jasmine jazz jelly jersey jewel jigsaw joint joke journal joyful judge
juice jumbo jungle junior kayak keel keeper kernel kettle keyboard kidney kimono kind kingdom kiosk kitchen kiwi
knee knife knuckle koala ladder lagoon lake lamp language lantern laptop large laser laundry lava lawyer leader
lecture ledger legend leisure lemon leopard lesson liberty library lilac linen lion liquid list lizard lobster local
locker logic long loom lotus lounge lucky lumber lunar lunch luxury lyric machine magnet mailbox major mammal mango
manual maple marble margin mask master maximum meadow measure meeting melody member memory mentor menu message
midnight milk miller mimic mineral minute mirror mitten mixer mobile model moment month moon mosaic mother motor
mountain movie muffin multiply museum music mustard mystery napkin narrow nation nature navy nebula necklace needle
nephew nerve nest network neutral nickel niece nimble noble noise nomad noodle normal north notebook novel nozzle
nutmeg nylon oasis oatmeal object oblong oboe observe obtain ocean office olive omelet onion online opal open opera
optic orange orbit orchard organ orient orphan ostrich otter outdoor owner oxygen oyster ozone pacific package
paddle page paint palace panda panel panther paper parade parent park pasta path patrol pattern pavement payment
peach peanut pearl pebble pedal pelican pencil penguin pepper perfect permit person phone photo phrase piano pickle
picnic picture pigeon pilot pink pioneer pipe pirate pitcher pixel pizza planet plastic plate player plenty plug
pocket podium poem polar police pond pool popcorn porch portal position postage potato pottery poultry powder
prairie price primary problem program pudding pulley pulse puma pupil puppet purple puzzle pyramid quail quality
quarter queen quest quick quiet quince quiz quote rabbit raccoon radar radio raft railway raisin rally random rapid
rattle razor realm recipe record reef referee region relax remedy remote renew rent repair report rescue resin
return reward rhythm ribbon ride ripple robin robot roller romance rooster rotate rough royal rubber rudder rugby
ruler runner rural rustic safari saffron sailor salad salmon salt salute sample sandal satin sausage savanna scale
scarf school science scooter score scout screen script scuba sculptor search second section seed sentence series
service seven shallow shampoo share shelf shield shine ship shirt shoe shoulder shovel shower shrimp shuttle sibling
sidewalk silent silver siren sister sixty size sketch slab slice smile smoke smooth snack snail snow soap soccer
sofa soldier sonic south space spider spinach spoon spray spring square squirrel stable staff stamp station step
stick stone story straw street strike strong studio style subway sugar summer sunset super supply surface sushi swan
sweater swim switch symbol syrup system tackle tactic talent tall target tarp taste taxi teacher teapot tearoom
temple tender tennis term textile theater theme theory thread throat thumb thunder ticket tiger timber tinsel tiny
tissue title tobacco today together token tomato tongue tooth topic tornado tortoise touch towel town track trade
traffic tray treasure trend triangle tribe trip trolley trophy trout trumpet trust truth tuba tugboat tulip tundra
tunnel turkey turtle tutor twelve twig typhoon umbrella uncle unicorn uniform uranium urban utensil vacant vacuum
valley valve vanilla vapor varnish vault vehicle velvet vendor vessel veteran viaduct vibrant victory video view
village vinegar violin visit vivid voice volcano volume voyage waffle wagon walnut walrus wander warm washer water
wave weasel wedding welcome western wheat wheel whisper white wicker width wild willow window winter wisdom wombat
work world wreath wrist yacht yard yellow yoga yogurt young zebra zenith zephyr zigzag zinc zipper zodiac
"""
WORDS = tuple(_LIST.split())


def plan_words(manifest_hash: bytes) -> str:
    """Returns nine words that stand for a manifest's hash (32 bytes), for people to compare; takes some 0.05 s."""
    digest = hashlib.scrypt(manifest_hash, salt=b"undersong plan words", dklen=16, **_COST)
    digest_number = int.from_bytes(digest, "big")
    return " ".join(WORDS[(digest_number >> (BITS * word_place)) % 2**BITS] for word_place in range(COUNT))


def same_words(typed_words: str, plan_words: str) -> bool:
    """Returns True if the words that somebody typed are those of the plan, ignoring case, commas and hyphens."""
    return typed_words.lower().replace(",", " ").replace("-", " ").split() == plan_words.split()
