"""What writes: decide, apply, restore, touch, purge, hold, sign (SPEC §7-§11)."""
