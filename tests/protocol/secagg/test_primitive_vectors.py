"""Golden vectors of the primitives, bad ones too: what another implementation is checked against."""

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.doubles.coded import raises
from undersong_common.errors import PeerFault, RoundAborted
from undersong_common.privacy import noise
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg import graph, masking, noise_share, ring, shamir
from undersong_protocol.statistics.vectors import GridVector

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "primitives.json").read_text())


def _entropy(seed: str) -> shamir.Entropy:
    return KeyStream(bytes.fromhex(seed)).read


def test_key_stream_equals_its_golden_vectors() -> None:
    for case in GOLDEN["stream"]:
        assert KeyStream(bytes.fromhex(case["seed"])).read(64).hex() == case["first_64"]


@pytest.mark.parametrize("case", GOLDEN["mask"], ids=lambda case: case["word"])
def test_mask_equals_its_golden_vectors(case: dict[str, Any]) -> None:
    accumulator = np.array(case["start"], dtype=case["word"])
    masking.add_masks(accumulator, [(bytes.fromhex(case["add"]), 1), (bytes.fromhex(case["subtract"]), -1)])
    assert accumulator.tolist() == case["result"]
    long = np.zeros(case["long_words"], dtype=case["word"])
    masking.add_masks(long, [(bytes.fromhex(case["add"]), 1)])
    assert hashlib.sha256(long.astype(long.dtype.newbyteorder("<")).tobytes()).hexdigest() == case["long_sha256"]


def test_shamir_shares_equal_their_golden_vectors() -> None:
    case = GOLDEN["shamir"]
    assert str(shamir.PRIME) == case["prime"]
    secret = bytes.fromhex(case["secret"])
    points = [int(point) for point in case["shares"]]
    shares = shamir.share(secret, case["threshold"], points, _entropy(case["entropy_stream_seed"]))
    assert {str(point): data.hex() for point, data in shares.items()} == case["shares"]
    weights = shamir.lagrange_weights([1, 3, 8])
    assert {str(point): str(weight) for point, weight in weights.items()} == case["weights_1_3_8"]
    assert shamir.combine(shares, 3, weights) == secret
    for bad in case["bad"]:
        with pytest.raises(PeerFault, match="share 2"):
            shamir.combine({**shares, bad["point"]: bytes.fromhex(bad["share"])}, case["threshold"])
    with raises(RoundAborted, "shares-do-not-combine"):
        shamir.combine({int(k): bytes.fromhex(v) for k, v in case["bad_combination"]["shares"].items()}, 3)


@pytest.mark.parametrize("case", GOLDEN["pack"], ids=lambda case: f"{case['bits']}-bits")
def test_packed_words_equal_their_golden_vectors(case: dict[str, Any]) -> None:
    words = np.array([int(word) for word in case["words"]], dtype=np.uint64)
    if case["bits"] <= 32:
        words = words.astype(np.uint32)
    assert ring.pack(words, case["bits"]).hex() == case["packed"]
    unpacked = ring.unpack(bytes.fromhex(case["packed"]), case["bits"], len(words))
    assert [int(word) for word in unpacked] == [int(word) % 2 ** case["bits"] for word in case["words"]]


@pytest.mark.parametrize("case", GOLDEN["bad_pack"], ids=lambda case: case["why"])
def test_malformed_packed_words_of_the_golden_vectors_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(PeerFault, match="clinic-3"):
        ring.unpack(bytes.fromhex(case["packed"]), case["bits"], case["count"], "clinic-3")


def test_modulus_bits_equal_their_golden_vectors() -> None:
    for case in GOLDEN["modulus_bits"]:
        expected = case.pop("bits")
        assert ring.modulus_bits(**case) == expected


def test_mask_graph_equals_its_golden_vectors() -> None:
    case = GOLDEN["graph"]
    seed = graph.graph_seed(bytes.fromhex(case["sid"]), [bytes.fromhex(nonce) for nonce in case["nonces"]])
    assert seed.hex() == case["seed"]
    around = graph.regular(12, 0, graph.Neighbourhood(case["degree"], case["degree"]), seed)
    assert list(graph.permutation(12, seed)) == case["permutation"]
    assert list(around.neighbours(0, range(12))) == case["neighbours_of_0"]
    text = ",".join(map(str, graph.permutation(1000, seed)))
    assert hashlib.sha256(text.encode()).hexdigest() == case["permutation_1000_sha256"]


@pytest.mark.heavy
@pytest.mark.parametrize("case", GOLDEN["noise"], ids=lambda case: f"{case['law']}-{case['arguments'][0]}")
def test_drawn_noise_equals_its_golden_vectors(case: dict[str, Any]) -> None:
    law = getattr(noise, case["law"])(Fraction(case["arguments"][0]), *case["arguments"][1:])
    drawn = law.sample(KeyStream(bytes.fromhex(case["seed"])), case["count"])
    assert drawn[: len(case["first"])].tolist() == case["first"]
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest() == case["sha256_le_int64"]


def test_noise_shares_equal_their_golden_vectors() -> None:
    case = GOLDEN["xnoise"]
    plan = noise_share.NoisePlan(case["sigma"], case["parties"], case["dropouts"], case["colluders"])
    entropy = _entropy(case["entropy_stream_seed"])
    seeds = noise_share.NoiseSeeds(entropy(32), entropy(32))
    assert [str(component) for component in plan.components] == case["components"]
    assert seeds.anchor(plan).hex() == case["anchor"]
    openings = [seeds.opening(plan, dropped) for dropped in range(plan.dropouts + 1)]
    assert [opening.hex() if opening else None for opening in openings] == case["openings"]
    noisy = noise_share.add_noise(GridVector(np.array(case["grid"], dtype=np.int64)), plan, seeds)
    assert noisy.values.tolist() == case["noisy"]
    left = noisy.values.copy()
    noise_share.remove_opened(left, plan, 1, bytes.fromhex(case["openings"][1]))
    assert left.tolist() == case["after_one_dropout"]
    for bad in case["bad"]:
        with pytest.raises(PeerFault, match="clinic-3"):
            noise_share.check_opening(
                bytes.fromhex(bad["value"]), plan, bad["dropped"], bytes.fromhex(case["anchor"]), "clinic-3"
            )
