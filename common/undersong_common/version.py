"""Name and version of this program, which the other side shows; the formats' versions decide the compatibility."""

VERSION = "0.3.0"
SOFTWARE = f"undersong {VERSION}"
