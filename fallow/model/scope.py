"""Which records are meant: an agent, memories, a user, a thread (SPEC §6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fallow.model.arguments import id_or_none, ids_or_none, refused, switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which records a plan is about (SPEC §6.4). Nothing named: the whole store.

    ``unowned`` with an agent adds the records without an owner; without an agent it means only those.
    ``memory_ids`` may be any iterable of ids; an empty one means no record, never all.

    Raises:
        UsageError: an id that is none, one text for several, a switch that is neither True nor False.
    """

    agent_id: str | None = None
    memory_ids: tuple[str, ...] | None = None
    user_id: str | None = None
    thread_id: str | None = None
    unowned: bool = False

    def __post_init__(self) -> None:
        for name in ("agent_id", "user_id", "thread_id"):
            object.__setattr__(self, name, id_or_none(getattr(self, name), name))
        object.__setattr__(self, "memory_ids", ids_or_none(self.memory_ids, "memory_ids"))
        object.__setattr__(self, "unowned", switch(self.unowned, "unowned"))

    @property
    def label(self) -> str:
        """The scope in a few words, for titles and errors."""
        parts = (
            [f"agent {self.agent_id}"] if self.agent_id else (["unowned records"] if self.unowned else ["whole store"])
        )
        if self.memory_ids is not None:
            parts.append(f"memory {', '.join(self.memory_ids)}" if self.memory_ids else "no memory")
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


def scope_or_all(given: Any, argument: str = "scope") -> Scope:
    """The scope that was given; None is the whole store.

    Raises:
        UsageError: no Scope.
    """
    if given is not None and not isinstance(given, Scope):
        raise refused(argument, given, "a Scope", hint="write Scope(agent_id=…)")
    return Scope() if given is None else given
