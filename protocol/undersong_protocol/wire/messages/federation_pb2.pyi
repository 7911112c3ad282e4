from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("version", "introduce", "propose", "agree", "open_sum", "sum_step", "void_sum", "close_run", "prepare_sum", "suspend_run", "epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INTRODUCE_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    AGREE_FIELD_NUMBER: _ClassVar[int]
    OPEN_SUM_FIELD_NUMBER: _ClassVar[int]
    SUM_STEP_FIELD_NUMBER: _ClassVar[int]
    VOID_SUM_FIELD_NUMBER: _ClassVar[int]
    CLOSE_RUN_FIELD_NUMBER: _ClassVar[int]
    PREPARE_SUM_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    introduce: Introduce
    propose: ProposeManifest
    agree: AgreeManifest
    open_sum: OpenSum
    sum_step: SumStep
    void_sum: VoidSum
    close_run: CloseRun
    prepare_sum: PrepareSum
    suspend_run: SuspendRun
    epoch: int
    def __init__(self, version: _Optional[int] = ..., introduce: _Optional[_Union[Introduce, _Mapping]] = ..., propose: _Optional[_Union[ProposeManifest, _Mapping]] = ..., agree: _Optional[_Union[AgreeManifest, _Mapping]] = ..., open_sum: _Optional[_Union[OpenSum, _Mapping]] = ..., sum_step: _Optional[_Union[SumStep, _Mapping]] = ..., void_sum: _Optional[_Union[VoidSum, _Mapping]] = ..., close_run: _Optional[_Union[CloseRun, _Mapping]] = ..., prepare_sum: _Optional[_Union[PrepareSum, _Mapping]] = ..., suspend_run: _Optional[_Union[SuspendRun, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("version", "introduction", "signature", "agreed", "sum_reply", "missing", "void_statement", "receipt", "refusal", "pending", "noted")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    SUM_REPLY_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    VOID_STATEMENT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    version: int
    introduction: Introduction
    signature: ManifestSignature
    agreed: ManifestAgreed
    sum_reply: SumReply
    missing: MissingBlocks
    void_statement: VoidStatement
    receipt: Receipt
    refusal: Refusal
    pending: Pending
    noted: Noted
    def __init__(self, version: _Optional[int] = ..., introduction: _Optional[_Union[Introduction, _Mapping]] = ..., signature: _Optional[_Union[ManifestSignature, _Mapping]] = ..., agreed: _Optional[_Union[ManifestAgreed, _Mapping]] = ..., sum_reply: _Optional[_Union[SumReply, _Mapping]] = ..., missing: _Optional[_Union[MissingBlocks, _Mapping]] = ..., void_statement: _Optional[_Union[VoidStatement, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., pending: _Optional[_Union[Pending, _Mapping]] = ..., noted: _Optional[_Union[Noted, _Mapping]] = ...) -> None: ...

class Introduce(_message.Message):
    __slots__ = ("challenge",)
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    def __init__(self, challenge: _Optional[bytes] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("name", "identity", "software", "embedder", "statistics", "signature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    identity: bytes
    software: str
    embedder: bytes
    statistics: _containers.RepeatedScalarFieldContainer[str]
    signature: bytes
    def __init__(self, name: _Optional[str] = ..., identity: _Optional[bytes] = ..., software: _Optional[str] = ..., embedder: _Optional[bytes] = ..., statistics: _Optional[_Iterable[str]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ProposeManifest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    def __init__(self, manifest: _Optional[bytes] = ...) -> None: ...

class ManifestSignature(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class AgreeManifest(_message.Message):
    __slots__ = ("manifest", "signatures")
    class SignaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signatures: _containers.ScalarMap[str, bytes]
    def __init__(self, manifest: _Optional[bytes] = ..., signatures: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class ManifestAgreed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Block(_message.Message):
    __slots__ = ("kind", "shape", "payload", "labels")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Block.Kind]
        EMBEDDINGS: _ClassVar[Block.Kind]
        TEXTS: _ClassVar[Block.Kind]
        NUMBERS: _ClassVar[Block.Kind]
    UNKNOWN: Block.Kind
    EMBEDDINGS: Block.Kind
    TEXTS: Block.Kind
    NUMBERS: Block.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    kind: Block.Kind
    shape: _containers.RepeatedScalarFieldContainer[int]
    payload: bytes
    labels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[Block.Kind, str]] = ..., shape: _Optional[_Iterable[int]] = ..., payload: _Optional[bytes] = ..., labels: _Optional[_Iterable[int]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("block", "rows", "all_rows")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ALL_ROWS_FIELD_NUMBER: _ClassVar[int]
    block: bytes
    rows: _containers.RepeatedScalarFieldContainer[int]
    all_rows: bool
    def __init__(self, block: _Optional[bytes] = ..., rows: _Optional[_Iterable[int]] = ..., all_rows: _Optional[bool] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("name", "segments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, name: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class OpenSum(_message.Message):
    __slots__ = ("manifest_hash", "sum", "attempt", "inputs", "blocks", "payload", "voids")
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    VOIDS_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    sum: str
    attempt: int
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    payload: bytes
    voids: _containers.RepeatedCompositeFieldContainer[VoidCertificate]
    def __init__(self, manifest_hash: _Optional[bytes] = ..., sum: _Optional[str] = ..., attempt: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., blocks: _Optional[_Iterable[bytes]] = ..., payload: _Optional[bytes] = ..., voids: _Optional[_Iterable[_Union[VoidCertificate, _Mapping]]] = ...) -> None: ...

class PrepareSum(_message.Message):
    __slots__ = ("manifest_hash", "sum", "attempt", "payload")
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    sum: str
    attempt: int
    payload: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ..., sum: _Optional[str] = ..., attempt: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class VoidCertificate(_message.Message):
    __slots__ = ("attempt", "statements")
    class StatementsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    statements: _containers.ScalarMap[str, bytes]
    def __init__(self, attempt: _Optional[int] = ..., statements: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class SumStep(_message.Message):
    __slots__ = ("manifest_hash", "sum", "attempt", "payload")
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    sum: str
    attempt: int
    payload: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ..., sum: _Optional[str] = ..., attempt: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class SumReply(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class MissingBlocks(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, blocks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class VoidSum(_message.Message):
    __slots__ = ("manifest_hash", "sum", "attempt")
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    sum: str
    attempt: int
    def __init__(self, manifest_hash: _Optional[bytes] = ..., sum: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class VoidStatement(_message.Message):
    __slots__ = ("statement",)
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    def __init__(self, statement: _Optional[bytes] = ...) -> None: ...

class CloseRun(_message.Message):
    __slots__ = ("manifest_hash",)
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ...) -> None: ...

class SuspendRun(_message.Message):
    __slots__ = ("manifest_hash",)
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ...) -> None: ...

class Noted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("body", "signature")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("kind", "problem", "remedy")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Refusal.Kind]
        CONFIGURATION: _ClassVar[Refusal.Kind]
        PRIVACY: _ClassVar[Refusal.Kind]
        PROTOCOL: _ClassVar[Refusal.Kind]
        ABORTED: _ClassVar[Refusal.Kind]
        INTERNAL: _ClassVar[Refusal.Kind]
        LATER: _ClassVar[Refusal.Kind]
    UNKNOWN: Refusal.Kind
    CONFIGURATION: Refusal.Kind
    PRIVACY: Refusal.Kind
    PROTOCOL: Refusal.Kind
    ABORTED: Refusal.Kind
    INTERNAL: Refusal.Kind
    LATER: Refusal.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    kind: Refusal.Kind
    problem: str
    remedy: str
    def __init__(self, kind: _Optional[_Union[Refusal.Kind, str]] = ..., problem: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
