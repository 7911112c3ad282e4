"""Name and version of this program, sent to the other side; compatibility is decided by the formats' versions."""

VERSION = "0.3.0"
SOFTWARE = f"undersong {VERSION}"
