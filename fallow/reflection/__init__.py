"""Summaries of conversations in which enough has happened (SPEC §5)."""
