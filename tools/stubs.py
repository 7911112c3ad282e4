"""Generates the Python stubs of every .proto of the protocol: ``python -m tools.stubs``.

Needs grpcio-tools (extra ``dev``). The stubs are committed; tests/tools/test_stubs.py keeps them true.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "protocol"
HERE = ROOT / "undersong_protocol" / "wire" / "messages"


def sources() -> list[str]:
    """Returns the path of every .proto, relative to the folder that holds the package, sorted."""
    return sorted(path.relative_to(ROOT).as_posix() for path in HERE.glob("*.proto"))


def compile_stubs(target: Path = ROOT) -> None:
    """Writes ``*_pb2.py`` and ``.pyi`` under ``target``; raises RuntimeError if protoc fails."""
    from grpc_tools import protoc

    include = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT}", f"-I{include}", f"--python_out={target}", f"--pyi_out={target}", *sources()]
    if status := protoc.main(arguments):
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    compile_stubs()
