"""The one door on top: thin commands, everything heavy imported inside them (SPEC §16)."""
