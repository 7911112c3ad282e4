"""Which program this is, as each side tells the other; whether two fit together is for the formats' own versions."""

VERSION = "0.2.0"
SOFTWARE = f"undersong {VERSION}"
