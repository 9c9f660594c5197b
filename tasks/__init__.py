"""Prefect tasks: one thin, retriable, coarse step each."""
