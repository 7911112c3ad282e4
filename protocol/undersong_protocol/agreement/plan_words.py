"""A plan's hash as nine words, short enough for a telephone: what ``preview`` shows and ``approve`` takes.

The words stand for 90 bits. A coordinator chooses what it proposes and may try many plans until the words of one suit
it, so each try is made to cost one scrypt (16 MiB, some 0.05 s of a core): another plan for given words takes 2^90 of
these, two plans with the same words 2^45, some 50 000 core-years. Neither serves at one party: it approves by the whole
hash, and refuses a plan whose words are those of another plan that was proposed to it (``consent.approvals``).
"""

import hashlib

COUNT = 9
BITS = 10  # per word
_COST = {"n": 2**14, "r": 8, "p": 1, "maxmem": 2**26}

# No two begin with the same four letters or differ in one letter only.
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
    """The nine words of a manifest's hash (32 bytes), separated by spaces. Takes some 0.05 s."""
    digest = hashlib.scrypt(manifest_hash, salt=b"undersong plan words", dklen=16, **_COST)
    number = int.from_bytes(digest, "big")
    return " ".join(WORDS[(number >> (BITS * place)) % 2**BITS] for place in range(COUNT))


def same_words(stated: str, shown: str) -> bool:
    """Compares typed words with those of the plan; ignores case, commas and hyphens."""
    return stated.lower().replace(",", " ").replace("-", " ").split() == shown.split()
