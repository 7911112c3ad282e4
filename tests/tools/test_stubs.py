"""The committed protobuf stubs are what protoc makes of the .proto files."""

from pathlib import Path

import pytest

from tools.stubs import HERE, compile_stubs, sources


def test_committed_stubs_are_those_of_the_proto_files(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    compile_stubs(tmp_path)
    made = sorted((tmp_path / "undersong_protocol" / "wire" / "messages").iterdir())
    assert len(made) == 2 * len(sources())
    for fresh in made:
        assert fresh.read_text() == (HERE / fresh.name).read_text(), f"run python -m tools.stubs ({fresh.name})"
