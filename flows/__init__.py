"""Prefect flows: the order of the steps, the pause, the named end states (SPEC §15)."""
