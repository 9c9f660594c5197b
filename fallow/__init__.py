"""fallow: a governed, reversible forgetting pipeline for agent memory."""
