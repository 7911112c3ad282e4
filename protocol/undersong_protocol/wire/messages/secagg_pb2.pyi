from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Stage]
    ADVERTISE: _ClassVar[Stage]
    REVEAL: _ClassVar[Stage]
    SHARE: _ClassVar[Stage]
    MASK: _ClassVar[Stage]
    CONSISTENCY: _ClassVar[Stage]
    UNMASK: _ClassVar[Stage]
    VOID: _ClassVar[Stage]
UNKNOWN: Stage
ADVERTISE: Stage
REVEAL: Stage
SHARE: Stage
MASK: Stage
CONSISTENCY: Stage
UNMASK: Stage
VOID: Stage

class Request(_message.Message):
    __slots__ = ("version", "sid", "advertise", "reveal", "share", "mask", "consistency", "unmask")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    UNMASK_FIELD_NUMBER: _ClassVar[int]
    version: int
    sid: bytes
    advertise: AdvertiseRequest
    reveal: RevealRequest
    share: ShareRequest
    mask: MaskRequest
    consistency: ConsistencyRequest
    unmask: UnmaskRequest
    def __init__(self, version: _Optional[int] = ..., sid: _Optional[bytes] = ..., advertise: _Optional[_Union[AdvertiseRequest, _Mapping]] = ..., reveal: _Optional[_Union[RevealRequest, _Mapping]] = ..., share: _Optional[_Union[ShareRequest, _Mapping]] = ..., mask: _Optional[_Union[MaskRequest, _Mapping]] = ..., consistency: _Optional[_Union[ConsistencyRequest, _Mapping]] = ..., unmask: _Optional[_Union[UnmaskRequest, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("version", "sid", "party", "stage", "body", "signature", "kem_keys")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEM_KEYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    sid: bytes
    party: int
    stage: Stage
    body: bytes
    signature: bytes
    kem_keys: bytes
    def __init__(self, version: _Optional[int] = ..., sid: _Optional[bytes] = ..., party: _Optional[int] = ..., stage: _Optional[_Union[Stage, str]] = ..., body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., kem_keys: _Optional[bytes] = ...) -> None: ...

class AdvertiseRequest(_message.Message):
    __slots__ = ("parties", "roster", "threshold", "tolerated_dropouts", "colluders", "dimension", "modulus_bits", "sigma", "graph_above", "law", "post_quantum", "merkle_above")
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    TOLERATED_DROPOUTS_FIELD_NUMBER: _ClassVar[int]
    COLLUDERS_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    MODULUS_BITS_FIELD_NUMBER: _ClassVar[int]
    SIGMA_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ABOVE_FIELD_NUMBER: _ClassVar[int]
    LAW_FIELD_NUMBER: _ClassVar[int]
    POST_QUANTUM_FIELD_NUMBER: _ClassVar[int]
    MERKLE_ABOVE_FIELD_NUMBER: _ClassVar[int]
    parties: int
    roster: bytes
    threshold: int
    tolerated_dropouts: int
    colluders: int
    dimension: int
    modulus_bits: int
    sigma: float
    graph_above: int
    law: str
    post_quantum: bool
    merkle_above: int
    def __init__(self, parties: _Optional[int] = ..., roster: _Optional[bytes] = ..., threshold: _Optional[int] = ..., tolerated_dropouts: _Optional[int] = ..., colluders: _Optional[int] = ..., dimension: _Optional[int] = ..., modulus_bits: _Optional[int] = ..., sigma: _Optional[float] = ..., graph_above: _Optional[int] = ..., law: _Optional[str] = ..., post_quantum: _Optional[bool] = ..., merkle_above: _Optional[int] = ...) -> None: ...

class Advert(_message.Message):
    __slots__ = ("channel_key", "mask_key", "commitment", "noise_anchor", "nonce_commitment", "terms", "channel_kem", "mask_kem")
    CHANNEL_KEY_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    NOISE_ANCHOR_FIELD_NUMBER: _ClassVar[int]
    NONCE_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEM_FIELD_NUMBER: _ClassVar[int]
    MASK_KEM_FIELD_NUMBER: _ClassVar[int]
    channel_key: bytes
    mask_key: bytes
    commitment: bytes
    noise_anchor: bytes
    nonce_commitment: bytes
    terms: bytes
    channel_kem: bytes
    mask_kem: bytes
    def __init__(self, channel_key: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., commitment: _Optional[bytes] = ..., noise_anchor: _Optional[bytes] = ..., nonce_commitment: _Optional[bytes] = ..., terms: _Optional[bytes] = ..., channel_kem: _Optional[bytes] = ..., mask_kem: _Optional[bytes] = ...) -> None: ...

class SignedAdvert(_message.Message):
    __slots__ = ("party", "body", "signature")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    party: int
    body: bytes
    signature: bytes
    def __init__(self, party: _Optional[int] = ..., body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RevealRequest(_message.Message):
    __slots__ = ("roll", "adverts", "present", "root", "path")
    ROLL_FIELD_NUMBER: _ClassVar[int]
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    roll: int
    adverts: _containers.RepeatedCompositeFieldContainer[SignedAdvert]
    present: bytes
    root: bytes
    path: bytes
    def __init__(self, roll: _Optional[int] = ..., adverts: _Optional[_Iterable[_Union[SignedAdvert, _Mapping]]] = ..., present: _Optional[bytes] = ..., root: _Optional[bytes] = ..., path: _Optional[bytes] = ...) -> None: ...

class ShareRequest(_message.Message):
    __slots__ = ("adverts", "nonces", "kem_keys", "adverts_proof", "roster", "roster_proof", "choosers")
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    KEM_KEYS_FIELD_NUMBER: _ClassVar[int]
    ADVERTS_PROOF_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    ROSTER_PROOF_FIELD_NUMBER: _ClassVar[int]
    CHOOSERS_FIELD_NUMBER: _ClassVar[int]
    adverts: _containers.RepeatedCompositeFieldContainer[SignedAdvert]
    nonces: bytes
    kem_keys: bytes
    adverts_proof: bytes
    roster: _containers.RepeatedCompositeFieldContainer[Enrolled]
    roster_proof: bytes
    choosers: bytes
    def __init__(self, adverts: _Optional[_Iterable[_Union[SignedAdvert, _Mapping]]] = ..., nonces: _Optional[bytes] = ..., kem_keys: _Optional[bytes] = ..., adverts_proof: _Optional[bytes] = ..., roster: _Optional[_Iterable[_Union[Enrolled, _Mapping]]] = ..., roster_proof: _Optional[bytes] = ..., choosers: _Optional[bytes] = ...) -> None: ...

class Enrolled(_message.Message):
    __slots__ = ("name", "identity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    identity: bytes
    def __init__(self, name: _Optional[str] = ..., identity: _Optional[bytes] = ...) -> None: ...

class Shares(_message.Message):
    __slots__ = ("ciphertexts", "hashes", "pairs", "pair_hashes")
    CIPHERTEXTS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    PAIR_HASHES_FIELD_NUMBER: _ClassVar[int]
    ciphertexts: bytes
    hashes: bytes
    pairs: bytes
    pair_hashes: bytes
    def __init__(self, ciphertexts: _Optional[bytes] = ..., hashes: _Optional[bytes] = ..., pairs: _Optional[bytes] = ..., pair_hashes: _Optional[bytes] = ...) -> None: ...

class MaskRequest(_message.Message):
    __slots__ = ("adverts", "nonces", "sharers", "ciphertexts", "hashes", "pairs", "pair_hashes")
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXTS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    PAIR_HASHES_FIELD_NUMBER: _ClassVar[int]
    adverts: _containers.RepeatedCompositeFieldContainer[SignedAdvert]
    nonces: bytes
    sharers: bytes
    ciphertexts: bytes
    hashes: bytes
    pairs: bytes
    pair_hashes: bytes
    def __init__(self, adverts: _Optional[_Iterable[_Union[SignedAdvert, _Mapping]]] = ..., nonces: _Optional[bytes] = ..., sharers: _Optional[bytes] = ..., ciphertexts: _Optional[bytes] = ..., hashes: _Optional[bytes] = ..., pairs: _Optional[bytes] = ..., pair_hashes: _Optional[bytes] = ...) -> None: ...

class ConsistencyRequest(_message.Message):
    __slots__ = ("survivors",)
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    survivors: bytes
    def __init__(self, survivors: _Optional[bytes] = ...) -> None: ...

class UnmaskRequest(_message.Message):
    __slots__ = ("signers", "signatures")
    SIGNERS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    signers: bytes
    signatures: bytes
    def __init__(self, signers: _Optional[bytes] = ..., signatures: _Optional[bytes] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("shares", "noise_chain")
    SHARES_FIELD_NUMBER: _ClassVar[int]
    NOISE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    shares: bytes
    noise_chain: bytes
    def __init__(self, shares: _Optional[bytes] = ..., noise_chain: _Optional[bytes] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("version", "sid", "transcript", "sharers", "survivors", "signers", "signatures", "question")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    SIGNERS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    version: int
    sid: bytes
    transcript: bytes
    sharers: bytes
    survivors: bytes
    signers: bytes
    signatures: bytes
    question: bytes
    def __init__(self, version: _Optional[int] = ..., sid: _Optional[bytes] = ..., transcript: _Optional[bytes] = ..., sharers: _Optional[bytes] = ..., survivors: _Optional[bytes] = ..., signers: _Optional[bytes] = ..., signatures: _Optional[bytes] = ..., question: _Optional[bytes] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("version", "sid", "terms", "party", "phase", "channel", "mask", "self_mask", "noise_own", "noise_root", "nonce", "sharing", "channel_kem", "adverts_hash", "transcript", "rolls", "present", "advert", "sharers", "survivors", "peers", "answered", "tombstone", "released", "question", "drawn", "choosers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SELF_MASK_FIELD_NUMBER: _ClassVar[int]
    NOISE_OWN_FIELD_NUMBER: _ClassVar[int]
    NOISE_ROOT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEM_FIELD_NUMBER: _ClassVar[int]
    ADVERTS_HASH_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    ROLLS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    ADVERT_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    CHOOSERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    sid: bytes
    terms: bytes
    party: int
    phase: int
    channel: bytes
    mask: bytes
    self_mask: bytes
    noise_own: bytes
    noise_root: bytes
    nonce: bytes
    sharing: bytes
    channel_kem: bytes
    adverts_hash: bytes
    transcript: bytes
    rolls: int
    present: _containers.RepeatedScalarFieldContainer[int]
    advert: bytes
    sharers: _containers.RepeatedScalarFieldContainer[int]
    survivors: _containers.RepeatedScalarFieldContainer[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    answered: _containers.RepeatedCompositeFieldContainer[Answered]
    tombstone: str
    released: bool
    question: bytes
    drawn: _containers.RepeatedScalarFieldContainer[int]
    choosers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., sid: _Optional[bytes] = ..., terms: _Optional[bytes] = ..., party: _Optional[int] = ..., phase: _Optional[int] = ..., channel: _Optional[bytes] = ..., mask: _Optional[bytes] = ..., self_mask: _Optional[bytes] = ..., noise_own: _Optional[bytes] = ..., noise_root: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., sharing: _Optional[bytes] = ..., channel_kem: _Optional[bytes] = ..., adverts_hash: _Optional[bytes] = ..., transcript: _Optional[bytes] = ..., rolls: _Optional[int] = ..., present: _Optional[_Iterable[int]] = ..., advert: _Optional[bytes] = ..., sharers: _Optional[_Iterable[int]] = ..., survivors: _Optional[_Iterable[int]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., answered: _Optional[_Iterable[_Union[Answered, _Mapping]]] = ..., tombstone: _Optional[str] = ..., released: _Optional[bool] = ..., question: _Optional[bytes] = ..., drawn: _Optional[_Iterable[int]] = ..., choosers: _Optional[_Iterable[int]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("party", "channel_key", "agreed", "mask_key", "nonce_commitment", "self_share", "mask_share", "channel_kem", "mask_kem", "identity")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEY_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    NONCE_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    SELF_SHARE_FIELD_NUMBER: _ClassVar[int]
    MASK_SHARE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEM_FIELD_NUMBER: _ClassVar[int]
    MASK_KEM_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    party: int
    channel_key: bytes
    agreed: bytes
    mask_key: bytes
    nonce_commitment: bytes
    self_share: bytes
    mask_share: bytes
    channel_kem: bytes
    mask_kem: bytes
    identity: bytes
    def __init__(self, party: _Optional[int] = ..., channel_key: _Optional[bytes] = ..., agreed: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., nonce_commitment: _Optional[bytes] = ..., self_share: _Optional[bytes] = ..., mask_share: _Optional[bytes] = ..., channel_kem: _Optional[bytes] = ..., mask_kem: _Optional[bytes] = ..., identity: _Optional[bytes] = ...) -> None: ...

class Answered(_message.Message):
    __slots__ = ("stage", "roll", "request", "reply")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROLL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    roll: int
    request: bytes
    reply: bytes
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., roll: _Optional[int] = ..., request: _Optional[bytes] = ..., reply: _Optional[bytes] = ...) -> None: ...
