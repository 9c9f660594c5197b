"""Which records are meant: an agent, memories, a user, a thread (SPEC §6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which records a plan is about (SPEC §6.4). Nothing named: the whole store.

    ``unowned`` with an agent adds the records without an owner; without an agent it means only those.
    """

    agent_id: str | None = None
    memory_ids: tuple[str, ...] | None = None
    user_id: str | None = None
    thread_id: str | None = None
    unowned: bool = False

    @property
    def label(self) -> str:
        """The scope in a few words, for titles and errors."""
        parts = (
            [f"agent {self.agent_id}"] if self.agent_id else (["unowned records"] if self.unowned else ["whole store"])
        )
        parts += [f"memory {', '.join(self.memory_ids)}"] if self.memory_ids else []
        parts += [f"user {self.user_id}"] if self.user_id else []
        parts += [f"thread {self.thread_id}"] if self.thread_id else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """As the document carries it."""
        return {
            "agent_id": self.agent_id,
            "memory_ids": None if self.memory_ids is None else list(self.memory_ids),
            "user_id": self.user_id,
            "thread_id": self.thread_id,
            "unowned": self.unowned,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`."""
        ids = data.get("memory_ids")
        return cls(
            agent_id=data.get("agent_id"),
            memory_ids=None if ids is None else tuple(ids),
            user_id=data.get("user_id"),
            thread_id=data.get("thread_id"),
            unowned=bool(data.get("unowned")),
        )
