"""The plan as data: document, hashes, storage, state (SPEC §6.7, §7)."""
