"""Holds: records that must not be suppressed for as long as somebody answers for it (SPEC §6.3, §8.1).

A hold names records by scope, by type or one by one, has an owner and a reason, and ends when it is
released or runs out. Holds are rows of the store that are inserted once and never changed; a release is a
row of its own. Planning and applying read them afresh: a hold that is placed after a plan was approved
still keeps its records.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fallow.judgement.holds import Hold
from fallow.model.arguments import (
    Time,
    instant,
    instant_or_none,
    record_keys,
    switch,
)
from fallow.model.arguments import (
    memory_types as checked_types,
)
from fallow.model.arguments import (
    text as checked_text,
)
from fallow.model.canonical import canonical_json
from fallow.model.errors import HoldError, StoreUnreadableError, UsageError
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope, scope_or_all
from fallow.model.times import iso, parse_time
from fallow.port.journal import SHARED, content_of, control_row
from fallow.port.journal_writing import insert_again, insert_control_rows
from fallow.port.protocol import Provider

HOLD: Final = "fallow-hold-"
RELEASE: Final = "fallow-release-"
MAX_NAME: Final = 240
MAX_REASON: Final = 2000
#: Records that one hold names one by one, at most: a row of it must fit in every store.
MAX_RECORDS: Final = 1000


def _name(text: str, what: str) -> str:
    name = unicodedata.normalize("NFC", checked_text(text, what)).strip()
    if not name or len(name) > MAX_NAME or any(unicodedata.category(char).startswith("C") for char in name):
        raise HoldError(f"{what} has no name that can be recorded", hint=f"a name of at most {MAX_NAME} characters")
    return name


def place_hold(
    provider: Provider,
    *,
    scope: Scope | None = None,
    memory_types: Iterable[str] = (),
    records: Iterable[RecordKey] = (),
    everything: bool = False,
    owner: str,
    reason: str,
    now: Time | None = None,
    expires_at: Time | None = None,
) -> Hold:
    """Keeps records from being planned and from being suppressed. Changes no record.

    Args:
        everything: that nothing is named is meant.
        owner: who answers for the hold.
        reason: why; it is shown wherever the hold keeps a record.
        expires_at: when it ends by itself, a time of SPEC §1.5; None: when it is released.

    Raises:
        UsageError: an argument is none of SPEC §1.5.
        HoldError: nothing, nobody or no reason is named, too many records are named, or the end has passed
            already.
    """
    now, expires_at = instant(now), instant_or_none(expires_at, "expires_at")
    scope, keys, named = scope_or_all(scope), tuple(sorted(record_keys(records))), checked_types(memory_types)
    if scope == Scope() and not named and not keys and not switch(everything, "everything"):
        raise HoldError("the hold names no records", hint="name a scope, a type or ids; --everything holds all")
    if len(keys) > MAX_RECORDS:
        raise HoldError(f"a hold names {MAX_RECORDS} records at most", hint="place several, or hold a scope")
    owner = _name(owner, "the owner")
    reason = " ".join(checked_text(reason, "reason").split())[:MAX_REASON]
    if not reason:
        raise HoldError("the hold has no reason", hint="say why: it is shown wherever a record is kept by it")
    if expires_at is not None and expires_at <= now:
        raise HoldError(f"the hold would end at {iso(expires_at)}, which has passed", hint="name a later end")
    content: dict[str, Any] = {
        "scope": scope.to_json(),
        "memory_types": list(named),
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
        except (KeyError, TypeError, ValueError, AttributeError, UsageError):
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


def release_hold(provider: Provider, hold_id: str, *, released_by: str, reason: str, now: Time | None = None) -> Hold:
    """Ends a hold. Releasing it twice changes nothing: the first release stands.

    Args:
        released_by: a checked approver (:func:`fallow.acting.deciding.check_approver`): a release lets records go.

    Raises:
        UsageError: an argument is none of SPEC §1.5.
        HoldError: there is no such hold, or nobody is named.
    """
    now, reason = instant(now), checked_text(reason, "reason")
    name = _name(released_by, "who releases it")
    wanted = checked_text(hold_id, "hold_id").strip().removeprefix(HOLD)
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
