from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DoesNotStart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STARTS: _ClassVar[DoesNotStart]
    POLICY: _ClassVar[DoesNotStart]
    VERSION: _ClassVar[DoesNotStart]
    CLOCK: _ClassVar[DoesNotStart]
STARTS: DoesNotStart
POLICY: DoesNotStart
VERSION: DoesNotStart
CLOCK: DoesNotStart

class FromParty(_message.Message):
    __slots__ = ("hello", "transfer", "chunk", "ack", "ping", "pong", "decided", "renew", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    transfer: Transfer
    chunk: Chunk
    ack: Ack
    ping: Ping
    pong: Pong
    decided: Decided
    renew: Renew
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., decided: _Optional[_Union[Decided, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class ToParty(_message.Message):
    __slots__ = ("welcome", "transfer", "chunk", "ack", "ping", "pong", "renewed", "goodbye", "acknowledged")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    transfer: Transfer
    chunk: Chunk
    ack: Ack
    ping: Ping
    pong: Pong
    renewed: Renewed
    goodbye: Goodbye
    acknowledged: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., acknowledged: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "party", "software", "embedder", "boot", "held", "epsilon_left", "paused", "policy", "does_not_start")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDER_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    EPSILON_LEFT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DOES_NOT_START_FIELD_NUMBER: _ClassVar[int]
    version: int
    party: str
    software: str
    embedder: bytes
    boot: bytes
    held: _containers.RepeatedCompositeFieldContainer[Held]
    epsilon_left: float
    paused: bool
    policy: str
    does_not_start: DoesNotStart
    def __init__(self, version: _Optional[int] = ..., party: _Optional[str] = ..., software: _Optional[str] = ..., embedder: _Optional[bytes] = ..., boot: _Optional[bytes] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., epsilon_left: _Optional[float] = ..., paused: _Optional[bool] = ..., policy: _Optional[str] = ..., does_not_start: _Optional[_Union[DoesNotStart, str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "coordinator", "software", "clock_s", "keepalive_s", "held")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_S_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    version: int
    coordinator: str
    software: str
    clock_s: float
    keepalive_s: float
    held: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, version: _Optional[int] = ..., coordinator: _Optional[str] = ..., software: _Optional[str] = ..., clock_s: _Optional[float] = ..., keepalive_s: _Optional[float] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("id", "content", "size", "plain_size", "deflated", "whole")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PLAIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEFLATED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    content: bytes
    size: int
    plain_size: int
    deflated: bool
    whole: bytes
    def __init__(self, id: _Optional[bytes] = ..., content: _Optional[bytes] = ..., size: _Optional[int] = ..., plain_size: _Optional[int] = ..., deflated: _Optional[bool] = ..., whole: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("content", "index", "data")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    index: int
    data: bytes
    def __init__(self, content: _Optional[bytes] = ..., index: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("content", "chunks")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    chunks: bytes
    def __init__(self, content: _Optional[bytes] = ..., chunks: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    def __init__(self, id: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    def __init__(self, request: _Optional[bytes] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("grant", "problem")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    grant: bytes
    problem: str
    def __init__(self, grant: _Optional[bytes] = ..., problem: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "reconnect_after_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    reconnect_after_s: float
    def __init__(self, reason: _Optional[str] = ..., reconnect_after_s: _Optional[float] = ...) -> None: ...
