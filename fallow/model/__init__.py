"""Records, times, ids, scopes, settings: what knows nothing else of fallow (SPEC §1, §6.1)."""
