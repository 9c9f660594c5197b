"""ODCS contracts, and the small compiler that turns them into checks (SPEC §13)."""
