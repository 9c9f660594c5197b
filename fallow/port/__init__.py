"""What stores fulfil, and fallow's own rows in them (SPEC §10, §12)."""
