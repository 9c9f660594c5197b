"""Holds: records that must not be suppressed for as long as somebody answers for it (SPEC §6.3, §8.1).

A hold names records by scope, by type or one by one, has an owner and a reason, and ends when it is
released or runs out. Holds are rows of the store that are inserted once and never changed; a release is a
row of its own. Planning and applying read them afresh: a hold that is placed after a plan was approved
still keeps its records.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from fallow.errors import HoldError, StoreUnreadableError
from fallow.history import insert_again, insert_control_rows
from fallow.journal import SHARED, content_of, control_row
from fallow.plan import Scope, canonical_json
from fallow.provider import Provider, RecordKey
from fallow.record import PRIMARY_TYPES, TYPE_ALIASES
from fallow.times import iso, parse_time

HOLD: Final = "fallow-hold-"
RELEASE: Final = "fallow-release-"
MAX_NAME: Final = 240
MAX_REASON: Final = 2000
#: Records that one hold names one by one, at most: a row of it must fit in every store.
MAX_RECORDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One hold and what became of it. Times are microseconds; ``expires_at`` None: until it is released.

    Attributes:
        scope: whose records; nothing named means everybody's.
        memory_types: only of these types; empty means all.
        records: only these; empty means all of the scope and types.
    """

    hold_id: str
    scope: Scope
    memory_types: tuple[str, ...]
    records: tuple[RecordKey, ...]
    owner: str
    reason: str
    placed_at: int
    expires_at: int | None
    released_at: int | None = None
    released_by: str | None = None
    release_reason: str | None = None

    def active(self, at: int) -> bool:
        """Whether it holds at an instant; one placed after that instant holds too."""
        return self.released_at is None and (self.expires_at is None or at < self.expires_at)

    @property
    def label(self) -> str:
        """What it holds, in a few words."""
        if self.records:
            names = ", ".join(f"{key.memory_type}:{key.record_id}" for key in self.records[:3])
            return names + (f" and {len(self.records) - 3} more" if len(self.records) > 3 else "")
        return ", ".join([self.scope.label, *self.memory_types])

    def to_json(self, at: int) -> dict[str, Any]:
        """For listings."""
        return {
            "hold_id": self.hold_id,
            "active": self.active(at),
            "scope": self.scope.to_json(),
            "memory_types": list(self.memory_types),
            "records": [list(key) for key in self.records],
            "owner": self.owner,
            "reason": self.reason,
            "placed_at": iso(self.placed_at),
            "expires_at": None if self.expires_at is None else iso(self.expires_at),
            "released_at": None if self.released_at is None else iso(self.released_at),
            "released_by": self.released_by,
            "release_reason": self.release_reason,
        }


def _name(text: str, what: str) -> str:
    name = unicodedata.normalize("NFC", text).strip()
    if not name or len(name) > MAX_NAME or any(unicodedata.category(char).startswith("C") for char in name):
        raise HoldError(f"{what} has no name that can be recorded", hint=f"a name of at most {MAX_NAME} characters")
    return name


def place_hold(
    provider: Provider,
    *,
    scope: Scope | None = None,
    memory_types: Sequence[str] = (),
    records: Iterable[RecordKey] = (),
    everything: bool = False,
    owner: str,
    reason: str,
    now: int,
    expires_at: int | None = None,
) -> Hold:
    """Keeps records from being planned and from being suppressed. Changes no record.

    Args:
        everything: that nothing is named is meant.
        owner: who answers for the hold.
        reason: why; it is shown wherever the hold keeps a record.
        expires_at: when it ends by itself, microseconds; None: when it is released.

    Raises:
        HoldError: nothing, nobody or no reason is named, a type is none that can be suppressed, too many
            records are named, or the end has passed already.
    """
    scope, keys = scope or Scope(), tuple(sorted(set(records)))
    named = [TYPE_ALIASES.get(name.strip(), name.strip()) for name in memory_types]
    unknown = [name for name in [*named, *(key.memory_type for key in keys)] if name not in PRIMARY_TYPES]
    if unknown:
        raise HoldError(
            f"'{unknown[0][:40]}' is not a type that is ever suppressed", hint=f"one of {', '.join(PRIMARY_TYPES)}"
        )
    if scope == Scope() and not named and not keys and not everything:
        raise HoldError("the hold names no records", hint="name a scope, a type or ids; --everything holds all")
    if len(keys) > MAX_RECORDS:
        raise HoldError(f"a hold names {MAX_RECORDS} records at most", hint="place several, or hold a scope")
    owner = _name(owner, "the owner")
    reason = " ".join(reason.split())[:MAX_REASON]
    if not reason:
        raise HoldError("the hold has no reason", hint="say why: it is shown wherever a record is kept by it")
    if expires_at is not None and expires_at <= now:
        raise HoldError(f"the hold would end at {iso(expires_at)}, which has passed", hint="name a later end")
    content: dict[str, Any] = {
        "scope": scope.to_json(),
        "memory_types": [name for name in PRIMARY_TYPES if name in named],
        "records": [list(key) for key in keys],
        "owner": owner,
        "reason": reason,
        "placed_at": iso(now),
        "expires_at": None if expires_at is None else iso(expires_at),
    }
    hold_id = hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]
    content["hold_id"] = hold_id
    insert_control_rows(
        provider, [control_row(HOLD + hold_id, "fallow_hold", content, now=now, agent_id=scope.agent_id)]
    )
    return _hold(content, None)


def list_holds(provider: Provider) -> list[Hold]:
    """Every hold that was ever placed, the latest first.

    Raises:
        StoreUnreadableError: a hold's row cannot be understood. Nothing is planned or applied past it.
    """
    releases = {
        str(content.get("hold_id")): content for row in provider.find(SHARED, RELEASE) if (content := content_of(row))
    }
    holds: list[Hold] = []
    for row in provider.find(SHARED, HOLD):
        content = content_of(row)
        try:
            holds.append(_hold(content, releases.get(str(content["hold_id"]))))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StoreUnreadableError(
                f"the hold {str(row.get('_id'))[:60]} cannot be read",
                hint="nothing is planned or applied past it: restore its row, or remove it by hand",
            ) from None
    return sorted(holds, key=lambda hold: (-hold.placed_at, hold.hold_id))


def active_holds(provider: Provider, at: int) -> tuple[Hold, ...]:
    """The holds that keep records at an instant. Raises as :func:`list_holds`."""
    return tuple(hold for hold in list_holds(provider) if hold.active(at))


def _hold(content: Mapping[str, Any], release: Mapping[str, Any] | None) -> Hold:
    placed_at, expires_at = parse_time(content["placed_at"]), parse_time(content["expires_at"])
    if placed_at is None or (expires_at is None and content["expires_at"] is not None):
        raise ValueError("no time")
    return Hold(
        hold_id=str(content["hold_id"]),
        scope=Scope.from_json(content["scope"]),
        memory_types=tuple(content["memory_types"]),
        records=tuple(RecordKey(*pair) for pair in content["records"]),
        owner=str(content["owner"]),
        reason=str(content["reason"]),
        placed_at=placed_at,
        expires_at=expires_at,
        released_at=None if release is None else (parse_time(release.get("released_at")) or placed_at),
        released_by=None if release is None else str(release.get("released_by")),
        release_reason=None if release is None else str(release.get("reason") or ""),
    )


def release_hold(provider: Provider, hold_id: str, *, released_by: str, reason: str, now: int) -> Hold:
    """Ends a hold. Releasing it twice changes nothing: the first release stands.

    Args:
        released_by: a checked approver (:func:`fallow.approval.check_approver`): a release lets records go.

    Raises:
        HoldError: there is no such hold, or nobody is named.
    """
    name = _name(released_by, "who releases it")
    wanted = hold_id.strip().removeprefix(HOLD)
    hold = next((hold for hold in list_holds(provider) if hold.hold_id == wanted), None)
    if hold is None:
        raise HoldError(f"there is no hold '{wanted[:40]}' here", hint="fallow hold list shows them")
    content = {
        "hold_id": hold.hold_id,
        "released_by": name,
        "reason": " ".join(reason.split())[:MAX_REASON],
        "released_at": iso(now),
    }
    row = control_row(RELEASE + hold.hold_id, "fallow_hold", content, now=now, agent_id=hold.scope.agent_id)
    if insert_control_rows(provider, [row]) == ["already"]:
        insert_again(provider, [RELEASE + hold.hold_id])
    return next(item for item in list_holds(provider) if item.hold_id == hold.hold_id)


def held_by(hold: Hold, memory_type: str) -> pl.Expr | None:
    """Which records of a type a hold keeps, as an expression over id and scope; None: none of them."""
    if hold.memory_types and memory_type not in hold.memory_types:
        return None
    rule = pl.lit(True)
    if hold.records:
        ids = [key.record_id for key in hold.records if key.memory_type == memory_type]
        if not ids:
            return None
        rule = pl.col("record_id").is_in(ids)
    scope = hold.scope
    if scope.agent_id and scope.unowned:
        rule = rule & ((pl.col("agent_id") == scope.agent_id).fill_null(True))
    elif scope.agent_id:
        rule = rule & (pl.col("agent_id") == scope.agent_id).fill_null(False)
    elif scope.unowned:
        rule = rule & pl.col("agent_id").is_null()
    if scope.memory_ids is not None:
        rule = rule & pl.col("memory_id").is_in(list(scope.memory_ids)).fill_null(False)
    for name, value in (("user_id", scope.user_id), ("thread_id", scope.thread_id)):
        if value is not None:
            rule = rule & (pl.col(name) == value).fill_null(False)
    return rule


def held_ids(frames: Mapping[str, pl.DataFrame], holds: Iterable[Hold]) -> dict[str, frozenset[str]]:
    """By memory type, the ids that any of these holds keeps, over a store as planning reads it."""
    found: dict[str, frozenset[str]] = {}
    holds = tuple(holds)
    for memory_type, frame in frames.items():
        rules = [rule for hold in holds if (rule := held_by(hold, memory_type)) is not None]
        if rules:
            found[memory_type] = frozenset(frame.filter(pl.any_horizontal(rules)).get_column("record_id").to_list())
    return found
