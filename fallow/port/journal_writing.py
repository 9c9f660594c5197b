"""Writing the memory history journal beside the records (SPEC §10): what happens when, and after a crash.

A record is written first, its journal entry after it, its head last. All three have ids of their own, so
whoever runs the same step again completes what is missing and changes nothing else. What is found stored is
inserted again: the process that stored it may have died before agents' listings had it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fallow.model.errors import StoreUnwritableError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import Record
from fallow.port.journal import HEAD_PREFIX, SHARED, change_row, content_of, content_text, head_id, head_row
from fallow.port.protocol import Outcome, Patch, Provider, Unreadable


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one record, as the journal will tell it.

    ``before`` is None where the earlier version can no longer be known: the write was found done.
    """

    row_id: str
    record: Record
    actor: str
    source: str
    before: Row | None
    after: Row
    changed: tuple[str, ...]
    now: int
    action: Literal["created", "updated"] = "updated"
    parents: tuple[Mapping[str, str], ...] = ()

    @property
    def key(self) -> RecordKey:
        """What names the record."""
        return RecordKey(self.record.memory_type, self.record.record_id)


def find_heads(provider: Provider, record_ids: set[str]) -> dict[str, str]:
    """The head rows that agents' own histories already keep for these records: head id by record id."""
    found: dict[str, str] = {}
    for row in provider.find(SHARED, HEAD_PREFIX):
        target = content_of(row).get("target_record_id")
        if target in record_ids:
            found[str(target)] = str(row["_id"])
    return found


def write_journal(provider: Provider, changes: Sequence[Change], heads: Mapping[str, str]) -> None:
    """Journal entries and heads of a chunk; what an earlier try wrote is left as it is.

    Raises:
        StoreUnwritableError: the store refused a row; the records themselves are written.
    """
    if not changes:
        return
    names = {change.row_id: heads.get(change.record.record_id) or head_id(change.key) for change in changes}
    rows = provider.fetch(SHARED, [*names, *names.values()])
    present = {name: row for name, row in rows.items() if not isinstance(row, Unreadable)}
    entries: list[Row] = []
    new_heads: list[Row] = []
    moved: list[Patch] = []
    for change in changes:
        name, written = names[change.row_id], present.get(change.row_id)
        head = present.get(name)
        latest = content_of(head).get("event_id") if head is not None else None
        if written is None:
            previous = latest if isinstance(latest, str) and latest != change.row_id else None
            entries.append(_entry(change, previous))
        else:
            previous = content_of(written).get("previous_event_id")
            entries.append(written)
            new_heads += [] if head is None else [head]
        row = head_row(change.record, name, change.row_id, change.after, now=change.now)
        if head is None:
            new_heads.append(row)
        elif latest == previous:
            content = {**content_of(head)}
            content.update({field: content_of(row)[field] for field in ("event_id", "version_hash", "updated_at")})
            moved.append(
                Patch(
                    RecordKey(SHARED, name),
                    {"content": head.get("content")},
                    {"content": content_text(content), "timestamp": row["timestamp"]},
                )
            )
    insert_control_rows(provider, entries)
    insert_control_rows(provider, new_heads)
    if moved:
        # A head that another writer moved on meanwhile is already later than ours: nothing to do about it.
        _check(provider.patch(moved), {"applied", "changed", "gone", "unknown"})


def _entry(change: Change, previous: str | None) -> Row:
    return change_row(
        change.row_id,
        change.record,
        actor=change.actor,
        source=change.source,
        before=change.before,
        after=change.after,
        changed=change.changed,
        now=change.now,
        previous_event_id=previous,
        action=change.action,
        parents=change.parents,
    )


def insert_control_rows(provider: Provider, rows: Sequence[Row]) -> list[str]:
    """Inserts rows of ``shared_memory``: ``applied`` or ``already`` for each, a lost answer settled by reading.

    Raises:
        StoreUnwritableError: the store refused a row.
    """
    if not rows:
        return []
    outcomes = provider.insert(SHARED, rows)
    lost = [row["_id"] for row, outcome in zip(rows, outcomes, strict=True) if outcome.status == "unknown"]
    there = set(provider.fetch(SHARED, lost)) if lost else set()
    statuses: list[str] = []
    for row, outcome in zip(rows, outcomes, strict=True):
        status = outcome.status
        if status == "unknown":
            # Ours or an earlier one of the same id: in both cases the row that stands is read back by the caller.
            outcome = Outcome(outcome.key, "already") if row["_id"] in there else provider.insert(SHARED, [row])[0]
            status = outcome.status
        _check([outcome], {"applied", "already"})
        statuses.append(status)
    return statuses


def insert_again(provider: Provider, row_ids: Iterable[str]) -> None:
    """Completes rows of ``shared_memory`` that a process may have died over: stored, but not yet in agents' listings.

    Inserting what is there changes nothing else (see :meth:`fallow.port.protocol.Provider.insert`).
    """
    rows = [row for row in provider.fetch(SHARED, row_ids).values() if not isinstance(row, Unreadable)]
    insert_control_rows(provider, rows)


def _check(outcomes: Iterable[Outcome], good: set[str]) -> None:
    for outcome in outcomes:
        if outcome.status not in good:
            raise StoreUnwritableError(
                f"the store refused a control row: {outcome.detail or outcome.status}",
                hint="check space and permissions and run it again: what is missing is completed",
            )
