"""Importance: what a memory is worth, by a free heuristic or by a model (SPEC §3)."""

from fallow.importance.config import ImportanceConfig
from fallow.importance.heuristic import Rarity, Rating
from fallow.importance.rater import ImportanceRater

__all__ = ["ImportanceConfig", "ImportanceRater", "Rarity", "Rating"]
