"""What importance rating is told to do (SPEC §3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from fallow.model.errors import SettingError

Mode = Literal["off", "heuristic", "llm"]
MODES: Final[tuple[Mode, ...]] = ("off", "heuristic", "llm")
MAX_BATCH_SIZE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceConfig:
    """How turns are rated.

    Attributes:
        mode: ``off`` rates nothing, ``heuristic`` is free and deterministic, ``llm`` asks a model and falls back.
        purpose: what the agent is for; a model rates relative to it.
        model: the model's name; empty means the endpoint's default.
        batch_size: rows in one request to a model, 1 to 100.

    Raises:
        SettingError: a value that cannot be used.
    """

    mode: Mode = "off"
    purpose: str = ""
    model: str = ""
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingError(f"importance mode '{str(self.mode)[:40]}' is unknown", hint=f"one of {', '.join(MODES)}")
        if isinstance(self.batch_size, bool) or not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise SettingError("importance batch_size must be 1 to 100")
