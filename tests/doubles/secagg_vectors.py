"""Writes tests/protocol/vectors/secagg.json: ``python -m tests.doubles.secagg_vectors``.

Golden vectors of keys, hashes, sealed shares, signatures, and whole transcripts with everybody's secrets, so that
another implementation can be checked against this one. A change of the file is a change of the protocol's version.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.doubles.secagg import (
    QUESTION,
    RecordedEncapsulation,
    answer,
    enrolled_key,
    names_of,
    open_parties,
    parameters_of,
    secrets_of,
    seed_of,
    stage_of,
    vector_of,
)
from undersong_protocol.secagg import keys, sid
from undersong_protocol.secagg.coordinator import private_sum
from undersong_protocol.secagg.masking import MaskKeys, seal_pair
from undersong_protocol.secagg.messages import to_bitmap
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire
from undersong_protocol.wire.public import Input, Segment, question

FILE = Path(__file__).resolve().parent.parent / "protocol" / "vectors" / "secagg.json"


def _derivations() -> dict[str, Any]:
    transcript, one, other = seed_of("transcript"), seed_of("one"), seed_of("other")
    shared = keys.Agreement(one).shared("other", keys.public_key(other))
    outward, inward = keys.share_key(transcript, shared, 3, 7), keys.share_key(transcript, shared, 7, 3)
    shares = bytes(range(66))
    hashes = keys.ShareHasher(transcript).both(3, 7, shares[:33], shares[33:])
    identity = enrolled_key("p00")
    return {
        "encode": {"label": "a", "fields": ["b", 1, "00ff"], "hex": sid.encode("a", ["b", 1, b"\x00\xff"]).hex()},
        "question": {
            "inputs": {"candidates": [[seed_of("block").hex(), None], [seed_of("block").hex(), [0, 2]]], "terms": []},
            "hex": question(
                [
                    Input("candidates", (Segment(seed_of("block")), Segment(seed_of("block"), (0, 2)))),
                    Input("terms", ()),
                ]
            ).hex(),
        },
        "sid": {
            "run": "run",
            "query": "votes/1",
            "attempt": 2,
            "manifest_hash": seed_of("manifest").hex(),
            "hex": sid.sid("run", "votes/1", 2, seed_of("manifest")).hex(),
        },
        "x25519": {
            "secret": one.hex(),
            "public": keys.public_key(one).hex(),
            "peer_secret": other.hex(),
            "peer_public": keys.public_key(other).hex(),
            "shared": shared.hex(),
        },
        "transcript": transcript.hex(),
        "asked": QUESTION.hex(),
        "mask_key_3_7": keys.mask_key(transcript, QUESTION, shared, 7, 3).hex(),
        "share_key_3_to_7": outward.hex(),
        "share_key_7_to_3": inward.hex(),
        "shares_3_to_7": shares.hex(),
        "share_hashes_3_to_7": hashes.hex(),
        "sealed_3_to_7": keys.seal(outward, transcript, 3, 7, shares, hashes).hex(),
        "self_mask_commitment_3": keys.self_mask_commitment(transcript, 3, one).hex(),
        "nonce_chain_2": sid.advance(one, 2).hex(),
        "opened_set": sid.opened_set(transcript, QUESTION, b"\x1f", b"\x17").hex(),
        "signature": {
            "identity_secret": seed_of("identity", "p00").hex(),
            "identity": identity.public_key().public_bytes_raw().hex(),
            "stage": int(Stage.CONSISTENCY),
            "party": 3,
            "body": transcript.hex(),
            "hex": keys.sign(identity, transcript, Stage.CONSISTENCY, 3, sid.body_hash(transcript)).hex(),
        },
        "post_quantum": _post_quantum_derivations(transcript, one, other),
        "low_order": sorted(key.hex() for key in keys._LOW_ORDER),
    }


def _post_quantum_derivations(transcript: bytes, one: bytes, other: bytes) -> dict[str, Any]:
    """Of the parties 3 (seed ``one``) and 7 (seed ``other``); what was encapsulated is one for channel and mask."""
    three, seven = MaskKeys(one, post_quantum=True), MaskKeys(other, post_quantum=True)
    encapsulated = RECORDED(seven.kem.public)
    shared, ciphertext = encapsulated
    secret = three.pair_secret(transcript, 7)
    hashed = keys.ShareHasher(transcript).one("pair", 3, 7, secret)
    agreed = three.agreed("7", seven.public)
    return {
        "seed_3": one.hex(),
        "seed_7": other.hex(),
        "x25519_public_3": three.public.hex(),
        "x25519_public_7": seven.public.hex(),
        "ml_kem_768_public_7": seven.kem.public.hex(),
        "ml_kem_768_key_hash_7": keys.kem_key_hash(seven.kem.public).hex(),
        "encapsulated": {"secret": shared.hex(), "ciphertext": ciphertext.hex()},
        "share_key_3_to_7": keys.share_key(transcript, agreed + shared, 3, 7).hex(),
        "pair_secret_3_7": secret.hex(),
        "pair_hash_3_7": hashed.hex(),
        "pair_seal_key_3_7": keys.pair_seal_key(transcript, agreed + shared, 3, 7).hex(),
        "sealed_pair_3_7": seal_pair(agreed, encapsulated, transcript, 3, 7, secret, hashed).hex(),
        "mask_key_3_7": keys.mask_key(transcript, QUESTION, agreed + secret, 3, 7).hex(),
    }


def describe(parameters: SumParameters) -> dict[str, Any]:
    """The public parameters as JSON."""
    return {
        "manifest_hash": parameters.manifest_hash.hex(),
        "run": parameters.run,
        "query": parameters.query,
        "attempt": parameters.attempt,
        "roster": [[member.name, member.identity.hex()] for member in parameters.roster],
        **{
            name: getattr(parameters, name)
            for name in (
                "threshold",
                "tolerated_dropouts",
                "colluders",
                "dimension",
                "modulus_bits",
                "sigma",
                "graph_above",
                "law",
                "post_quantum",
            )
        },
    }


def written(parameters: SumParameters, party: str, request: bytes) -> str:
    """A request as the file has it: post-quantum ones are long, and those of three parties are enough."""
    if parameters.post_quantum and parameters.index(party) not in (0, 1, parameters.size - 1):
        return f"sha256 {hashlib.sha256(request).hexdigest()}"
    return request.hex()


def _transcript(parameters: SumParameters, lost: dict[str, Stage]) -> dict[str, Any]:
    parties = open_parties(parameters, RECORDED)
    coordinator = private_sum(parameters, lambda: QUESTION)
    requests = next(coordinator)
    rounds = []
    while True:
        stage = stage_of(wire.Request.FromString(next(iter(requests.values()))))
        replies = {
            name: answer(parties[name], request, vector_of(name, parameters.dimension)).payload
            for name, request in requests.items()
            if lost.get(name, stage + 1) > stage
        }
        rounds.append(
            {
                "stage": stage.name,
                "requests": {name: written(parameters, name, request) for name, request in requests.items()},
                "replies": {name: reply.hex() for name, reply in replies.items()},
            }
        )
        try:
            requests = coordinator.send(replies)
        except StopIteration as stop:
            opened = stop.value
            break
    return {
        "parameters": describe(parameters),
        "sid": parameters.sid.hex(),
        "terms": parameters.terms.hex(),
        "question": QUESTION.hex(),
        "parties": {
            name: {
                "identity_secret": seed_of("identity", name).hex(),
                "secrets": {kind: secret.hex() for kind, secret in secrets_of(parameters, name).items()},
                "vector": vector_of(name, parameters.dimension).values.tolist(),
            }
            for name in names_of(parameters.size)
        },
        "rounds": rounds,
        "values": opened.values.tolist(),
        "survivors": list(opened.survivors),
        "variance": opened.variance,
        "evidence": opened.evidence.hex(),
    }


def _bad(five: dict[str, Any]) -> list[dict[str, str]]:
    """Requests to p01 of a five-party transcript that must be refused, each after the good ones of earlier stages."""
    good = {entry["stage"]: bytes.fromhex(entry["requests"]["p01"]) for entry in five["rounds"]}
    cases: list[dict[str, str]] = []

    def case(stage: str, why: str, error: str, bend: Any) -> None:
        message = wire.Request.FromString(good[stage])
        bend(message)
        cases.append(
            {
                "instead_of": stage,
                "request": message.SerializeToString(deterministic=True).hex(),
                "error": error,
                "words": why,
            }
        )

    def flip(data: bytes, at: int) -> bytes:
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    case("ADVERTISE", "speaks version 1", "PeerFault", lambda m: setattr(m, "version", 1))
    case("ADVERTISE", "speaks version 2", "PeerFault", lambda m: setattr(m, "version", 2))
    case("ADVERTISE", "speaks version 4", "PeerFault", lambda m: setattr(m, "version", 4))
    case("ADVERTISE", "foreign sid", "PrivacyRefusal", lambda m: setattr(m, "sid", bytes(32)))
    case("ADVERTISE", "sigma is not the approved one", "PrivacyRefusal", lambda m: setattr(m.advertise, "sigma", 1.0))
    case("SHARE", "does not carry", "PeerFault", lambda m: setattr(m.share.adverts[4], "signature", bytes(64)))
    case("SHARE", "omits this party", "PrivacyRefusal", lambda m: m.share.adverts.pop(1))
    case("SHARE", "out of order", "PeerFault", lambda m: m.share.adverts.append(m.share.adverts[0]))
    case("MASK", "do not open", "PeerFault", lambda m: setattr(m.mask, "ciphertexts", flip(m.mask.ciphertexts, 5)))
    case("MASK", "expected 4 blocks", "PeerFault", lambda m: setattr(m.mask, "hashes", m.mask.hashes[:-1]))
    case("MASK", "at least 4 are needed", "PrivacyRefusal", lambda m: setattr(m.mask, "sharers", b"\x07"))
    case("CONSISTENCY", "omits this party", "PrivacyRefusal", lambda m: setattr(m.consistency, "survivors", b"\x1d"))
    case("CONSISTENCY", "no set", "PeerFault", lambda m: setattr(m.consistency, "survivors", b"\x3f"))
    case(
        "UNMASK",
        "does not carry",
        "PeerFault",
        lambda m: setattr(m.unmask, "signatures", flip(m.unmask.signatures, 70)),
    )

    def fewer(message: wire.Request) -> None:
        message.unmask.signers = to_bitmap([0, 1], 5)
        message.unmask.signatures = message.unmask.signatures[:128]

    case("UNMASK", "2 signatures on U3 where 4 are needed", "PrivacyRefusal", fewer)

    def of_another_question(message: wire.Request) -> None:
        # p00 was asked something else: what it signed then is no signature on what p01 answered.
        parameters = parameters_of(5, sigma=100.0, post_quantum=five["parameters"]["post_quantum"])
        evidence = wire.Evidence.FromString(bytes.fromhex(five["evidence"]))
        body = sid.opened_set(evidence.transcript, seed_of("other inputs"), evidence.sharers, evidence.survivors)
        signed = keys.sign(enrolled_key("p00"), parameters.sid, Stage.CONSISTENCY, 0, sid.body_hash(body))
        message.unmask.signatures = signed + message.unmask.signatures[64:]

    case("UNMASK", "of another question", "PeerFault", of_another_question)
    other = not five["parameters"]["post_quantum"]
    case("ADVERTISE", "post_quantum is not", "PrivacyRefusal", lambda m: setattr(m.advertise, "post_quantum", other))
    if other:
        case("SHARE", "expected 0 blocks of 1184", "PeerFault", lambda m: setattr(m.share, "kem_keys", bytes(1184)))
        case("MASK", "expected 0 blocks of 1136", "PeerFault", lambda m: setattr(m.mask, "pairs", bytes(1136)))
        return cases
    size = keys.KEM_KEY_BYTES

    def swapped(message: wire.Request) -> None:
        given = message.share.kem_keys
        message.share.kem_keys = (
            given[4 * size : 6 * size] + given[2 * size : 4 * size] + given[: 2 * size] + given[6 * size :]
        )

    def channel_for_mask(message: wire.Request) -> None:
        given = message.share.kem_keys
        message.share.kem_keys = given[size : 2 * size] + given[:size] + given[2 * size :]

    case("SHARE", "expected 5 blocks of 2368", "PeerFault", lambda m: m.share.ClearField("kem_keys"))
    case("SHARE", "another ML-KEM-768 key of p00", "PeerFault", swapped)
    case("SHARE", "another ML-KEM-768 key of p00", "PeerFault", channel_for_mask)
    case("SHARE", "key of p01", "PeerFault", lambda m: setattr(m.share, "kem_keys", flip(m.share.kem_keys, 2 * size)))
    case("MASK", "pair with this party", "PeerFault", lambda m: setattr(m.mask, "pairs", flip(m.mask.pairs, 0)))
    case("MASK", "pair with this party", "PeerFault", lambda m: setattr(m.mask, "pairs", flip(m.mask.pairs, 1100)))
    case("MASK", "pair with this", "PeerFault", lambda m: setattr(m.mask, "pair_hashes", flip(m.mask.pair_hashes, 0)))
    case("MASK", "expected 1 blocks of 1136", "PeerFault", lambda m: m.mask.ClearField("pairs"))
    return cases


def vectors() -> dict[str, Any]:
    """Everything in the file."""
    derivations = _derivations()
    kinds = {kind: _kind(post_quantum) for kind, post_quantum in (("classical", False), ("post_quantum", True))}
    return {
        "version": sid.VERSION,
        "derivations": derivations,
        "encapsulations": {
            hashed.hex(): [secret.hex(), ciphertext.hex()] for hashed, (secret, ciphertext) in RECORDED.recorded.items()
        },
        **kinds,
    }


def _kind(post_quantum: bool) -> dict[str, Any]:
    """Transcripts with one kind of masks, and what must be refused in the first one."""
    five = _transcript(parameters_of(5, sigma=100.0, post_quantum=post_quantum), {"p03": Stage.MASK})
    direct = {"tolerated_dropouts": 0, "colluders": 2, "dimension": 5, "modulus_bits": 37, "sigma": 30.0}
    graph = {"graph_above": 7, "dimension": 3, "modulus_bits": 20}
    return {
        "five_parties_one_lost": five,
        "direct_four_parties": _transcript(parameters_of(4, post_quantum=post_quantum, **direct), {}),
        "graph_ten_parties_rolled_twice": _transcript(
            parameters_of(10, post_quantum=post_quantum, **graph), {"p08": Stage.REVEAL}
        ),
        "single_party": _transcript(parameters_of(1, dimension=5, sigma=30.0, post_quantum=post_quantum), {}),
        "refused": _bad(five),
    }


def _recorded() -> RecordedEncapsulation:
    """What the file has, so that it is written again as it is; a version's first file is drawn by the library."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    kept = found.get("encapsulations", {}) if found.get("version") == sid.VERSION else {}
    return RecordedEncapsulation(
        {
            bytes.fromhex(hashed): (bytes.fromhex(secret), bytes.fromhex(ciphertext))
            for hashed, (secret, ciphertext) in kept.items()
        }
    )


RECORDED = _recorded()

if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="utf-8")
