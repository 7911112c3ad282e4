"""Where the parties of a simulation take their random bytes from: as real parties do, or reproducibly for tests."""

from undersong_client.entropy import from_system, insecure

__all__ = ["from_system", "insecure"]
