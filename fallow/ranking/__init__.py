"""Tier 0: ranking decay and selection (SPEC §2)."""
