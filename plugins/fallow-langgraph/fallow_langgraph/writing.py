"""Writes: rows are locked, read, held against the condition and written, all in one transaction.

Nobody is waited for while rows are locked: a row that an agent holds is passed over and tried again alone, so an
agent's statement over several rows never meets ours in a circle (PostgreSQL would break it by failing one of them).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
from fallow.model.keys import MISSING, RecordKey, Row, canonical_id, is_unicode
from fallow.model.record import PRIMARY_TYPES, read_record
from fallow.model.times import from_microseconds, parse_time
from fallow.port.protocol import Outcome, Patch, Unreadable

from fallow_langgraph import statements as sql
from fallow_langgraph.mapping import Rule, StoreMapping
from fallow_langgraph.rendering import Found, encoded

Connection = psycopg.Connection[tuple[Any, ...]]
#: Gives what lies under ids (:meth:`fallow_langgraph.provider.LangGraphProvider.found`).
Finder = Callable[[Connection, str, Sequence[str]], dict[str, "Found | Unreadable"]]
#: What one write does with the row it finds: an outcome at once, or the fields it sets.
Decision = Callable[[Row], "Outcome | Mapping[str, Any]"]
#: A decided change: its place in the call, the row, all fields kept beside it afterwards, its key.
Change = tuple[int, Found, dict[str, Any], RecordKey]

PUT_AGAIN: Final = "the agent has put this key again: its row stays, and this one stays suppressed"
_HELD: Final = "another process kept this row locked"
_BATCH: Final = 1000
#: Seconds that one row is waited for, alone.
_WAIT: Final = 10.0


class Writing:
    """Writes on one connection in autocommit, which the caller has to itself."""

    def __init__(self, connection: Connection, mapping: StoreMapping, found: Finder, patience: float) -> None:
        self._connection, self._mapping, self._found = connection, mapping, found
        self._wait = min(_WAIT, patience)
        self._vectors = self._ready = False

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        """One outcome a patch, in order."""
        if not patches:
            return []
        return self._write([(patch.key, _patching(patch)) for patch in patches])

    def touch(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        """One outcome an id, in order."""
        if not record_ids:
            return []
        return self._write(
            [(RecordKey(memory_type, name), _touching(RecordKey(memory_type, name), now)) for name in record_ids]
        )

    def _write(self, wanted: Sequence[tuple[RecordKey, Decision]]) -> list[Outcome]:
        self._make_tables()
        outcomes: dict[int, Outcome] = {}
        for batch in _batches(wanted):
            outcomes |= self._batch(batch)
        return [outcomes[place] for place in range(len(wanted))]

    def _batch(self, batch: dict[int, tuple[RecordKey, Decision]]) -> dict[int, Outcome]:
        """A batch of different keys of one kind of table."""
        if _is_control(next(iter(batch.values()))[0]):
            return {place: self._control(key, decide) for place, (key, decide) in batch.items()}
        try:
            outcomes, held = self._locked(batch, wait=False)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            outcomes, held = {}, batch
        except psycopg.DataError:
            outcomes, held = {}, batch
        for place, item in held.items():
            try:
                outcomes |= self._locked({place: item}, wait=True)[0]
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                outcomes[place] = Outcome(item[0], "failed", _HELD)
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                outcomes[place] = Outcome(item[0], "failed", f"PostgreSQL refuses it: {type(error).__name__}")
        return outcomes

    def _locked(
        self, batch: dict[int, tuple[RecordKey, Decision]], *, wait: bool
    ) -> tuple[dict[int, Outcome], dict[int, tuple[RecordKey, Decision]]]:
        """One transaction. Its second answer is what another process holds, which was left as it is."""
        outcomes: dict[int, Outcome] = {}
        with self._connection.transaction():
            self._connection.execute(
                "select set_config('lock_timeout', %s, true)", (str(int(self._wait * 1000)) if wait else "300",)
            )
            if self._mapping.expired == "honour":
                self._connection.execute(sql.EXPIRED)
            found = self._find(batch)
            taken = self._take([item for item in found.values() if isinstance(item, Found)], wait=wait)
            held = {
                place: item
                for place, item in batch.items()
                if item[0] in found and not _is_taken(found[item[0]], taken)
            }
            found = self._find({place: item for place, item in batch.items() if place not in held})
            changes: list[Change] = []
            for place, (key, decide) in batch.items():
                if place in held:
                    continue
                item = found.get(key)
                if item is not None and not _is_taken(item, taken):
                    held[place] = (key, decide)  # it came, or moved, between finding and locking
                    continue
                decided = _decided(key, item, decide)
                if isinstance(decided, Outcome):
                    outcomes[place] = decided
                elif isinstance(item, Found):
                    changes.append((place, item, decided, key))
            written = self._carry_out(changes)
            outcomes |= {place: Outcome(key, "applied") for place, _, _, key in changes} | written
        if wait and held:
            return {**outcomes, **{place: Outcome(item[0], "failed", _HELD) for place, item in held.items()}}, {}
        return outcomes, held

    def _find(self, batch: dict[int, tuple[RecordKey, Decision]]) -> dict[RecordKey, Found | Unreadable]:
        by_type: dict[str, list[str]] = {}
        for key, _ in batch.values():
            if is_unicode(key.record_id):
                by_type.setdefault(key.memory_type, []).append(key.record_id)
        return {
            RecordKey(memory_type, name): item
            for memory_type, names in by_type.items()
            for name, item in self._found(self._connection, memory_type, names).items()
        }

    def _take(self, items: Sequence[Found], *, wait: bool) -> set[tuple[str, str, str | None]]:
        """Locks the rows; which of them are ours now. None in place of the suffix: the one that is shown."""
        skip = "" if wait else "skip locked"
        taken: set[tuple[str, str, str | None]] = set()
        for statement, hidden in ((sql.LOCK_SHOWN, False), (sql.LOCK_HIDDEN, True)):
            wanted = [item.stored for item in items if item.stored.suppressed is hidden]
            if wanted:
                binds = {"prefixes": [one.prefix for one in wanted], "keys": [one.key for one in wanted]}
                for row in self._connection.execute(statement.format(wait=skip), binds):
                    taken.add((row[0], row[1], row[2] if hidden else None))
        return taken

    def _carry_out(self, changes: Sequence[Change]) -> dict[int, Outcome]:
        """Writes what was decided, each kind of change in one statement; outcomes that are not ``applied``."""
        kinds: dict[str, list[Change]] = {}
        for change in changes:
            suppressed = change[1].stored.suppressed
            hides = change[2].get("retention_state") == "suppressed"
            shows = "retention_state" in change[2] and not hides
            kind = ("restore" if shows else "hidden") if suppressed else ("suppress" if hides else "shown")
            kinds.setdefault(kind, []).append(change)
        for kind, statement in (("shown", sql.SET_SHOWN), ("hidden", sql.SET_HIDDEN)):
            if kind in kinds:
                self._connection.execute(statement, _binds(kinds[kind]))
        if "suppress" in kinds:
            vectors = sql.SUPPRESS_VECTORS if self._vectors else ""
            self._connection.execute(sql.SUPPRESS.format(vectors=vectors), _binds(kinds["suppress"]))
        return self._restore(kinds["restore"]) if "restore" in kinds else {}

    def _restore(self, changes: Sequence[Change]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        # Of two suppressed rows of one key only one can come back.
        rounds: list[dict[tuple[str, str], Change]] = [{}]
        for change in changes:
            place = (change[1].stored.prefix, change[1].stored.key)
            if place in rounds[-1]:
                rounds.append({})
            rounds[-1][place] = change
        for batch in rounds:
            back = {(row[0], row[1]) for row in self._connection.execute(sql.RESTORE, _binds(list(batch.values())))}
            done = [change for place, change in batch.items() if place in back]
            for place, change in batch.items():
                if place not in back:
                    outcomes[change[0]] = Outcome(change[3], "failed", PUT_AGAIN)
            if done:
                if self._vectors:
                    self._connection.execute(sql.RESTORE_VECTORS, _binds(done))
                self._connection.execute(sql.FORGET_HIDDEN, _binds(done))
        return outcomes

    # Control rows

    def _control(self, key: RecordKey, decide: Decision) -> Outcome:
        if not is_unicode(key.record_id):
            return Outcome(key, "failed", "the id is no text that can be stored")
        with self._connection.transaction():
            found = self._connection.execute(sql.CONTROL_LOCK, tuple(key)).fetchone()
            if found is None:
                return Outcome(key, "gone")
            row: Row = {**json.loads(found[0]), "_id": key.record_id}
            decided = decide(row)
            if isinstance(decided, Outcome):
                return decided
            try:
                text = encoded({**row, **decided})
            except ValueError as error:
                return Outcome(key, "failed", str(error))
            self._connection.execute(sql.CONTROL_SET, (text, *key))
        return Outcome(key, "applied")

    def insert_control(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        """One outcome a row, in order."""
        if not rows:
            return []
        self._make_tables()
        outcomes: list[Outcome] = []
        texts: dict[str, str] = {}
        for row in rows:
            name = canonical_id(row.get("_id")) or ""
            key = RecordKey(memory_type, name)
            if not name or not is_unicode(name):
                outcomes.append(Outcome(key, "failed", "the row has no usable _id"))
                continue
            try:
                text = _text_of({**row, "_id": name})
            except ValueError as error:
                outcomes.append(Outcome(key, "failed", str(error)))
                continue
            outcomes.append(Outcome(key, "already" if name in texts else "applied"))
            texts.setdefault(name, text)
        new: set[str] = set()
        for start in range(0, len(texts), _BATCH):
            part = list(texts.items())[start : start + _BATCH]
            binds = (memory_type, [name for name, _ in part], [text for _, text in part])
            new |= {str(row[0]) for row in self._connection.execute(sql.CONTROL_INSERT, binds)}
        return [
            Outcome(outcome.key, "already")
            if outcome.status == "applied" and outcome.key.record_id not in new
            else outcome
            for outcome in outcomes
        ]

    # Records

    def insert_records(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        """One outcome a row, in order. A row goes to the first rule of its type that says where."""
        if not rows:
            return []
        self._make_tables()
        return [self._inserted(memory_type, row) for row in rows]

    def _inserted(self, memory_type: str, row: Row) -> Outcome:
        name = canonical_id(row.get("_id")) or ""
        key = RecordKey(memory_type, name)
        if not name or not is_unicode(name):
            return Outcome(key, "failed", "the row has no usable _id")
        place = next(
            filter(None, (_place(rule, row, name) for rule in self._mapping.rules if rule.memory_type == memory_type)),
            None,
        )
        if place is None or (rule := self._mapping.rule_of(place[0])) is None or rule.memory_type != memory_type:
            return Outcome(key, "failed", f"no rule says in which namespace a new record of {memory_type} goes")
        try:
            text = encoded({field: value for field, value in row.items() if field not in ("_id", "id")})
        except ValueError as error:
            return Outcome(key, "failed", str(error))
        created = next((at for at in (parse_time(row.get(field)) for field in ("timestamp", "created_at")) if at), None)
        when = None if created is None else from_microseconds(created)
        with self._connection.transaction():
            if name in self._found(self._connection, memory_type, [name]):
                return Outcome(key, "already")
            done = self._connection.execute(sql.INSERT_SHOWN, (*place, text, when, when))
        return Outcome(key, "applied" if done.rowcount else "already")

    def _make_tables(self) -> None:
        """fallow's own tables, where they are missing: by the first write, never by reading."""
        if self._ready:
            return
        found = self._connection.execute(sql.HAS_TABLES).fetchone()
        assert found is not None
        tables, vectors, kept = found
        if not tables or (vectors and not kept):
            with self._connection.transaction():
                self._connection.execute(sql.MAKING)
                self._connection.execute(sql.TABLES)
                if vectors:
                    kinds = self._connection.execute(sql.COLUMNS, ("store_vectors",)).fetchall()
                    kind = next(str(row[1]) for row in kinds if row[0] == "embedding")
                    self._connection.execute(sql.VECTOR_TABLE.format(type=kind))
        self._vectors, self._ready = bool(vectors), True


def _is_control(key: RecordKey) -> bool:
    return key.memory_type not in PRIMARY_TYPES


def _patching(patch: Patch) -> Decision:
    def decide(row: Row) -> Outcome | Mapping[str, Any]:
        return patch.changes if holds(row, patch.expected) else Outcome(patch.key, "changed")

    return decide


def _touching(key: RecordKey, now: int) -> Decision:
    def decide(row: Row) -> Outcome | Mapping[str, Any]:
        record = read_record(row, *key)
        if record.retention_state == "suppressed":
            return Outcome(key, "changed", "suppressed")
        latest = max(now, record.last_accessed_at or now)
        return {"last_accessed_at": from_microseconds(latest).isoformat(), "access_count": record.access_count + 1}

    return decide


def _decided(key: RecordKey, item: Found | Unreadable | None, decide: Decision) -> Outcome | dict[str, Any]:
    """What becomes of a row: an outcome, or all fields that fallow keeps beside it afterwards."""
    if item is None:
        return Outcome(key, "gone")
    if isinstance(item, Unreadable):
        return Outcome(key, "failed", item.reason)
    assert isinstance(item.row, dict)
    decided = decide(item.row)
    if isinstance(decided, Outcome):
        return decided
    fields = {**(json.loads(item.stored.fields) if item.stored.fields else {}), **decided}
    try:
        encoded(fields)
    except ValueError as error:
        return Outcome(key, "failed", str(error))
    return fields


def _is_taken(item: Found | Unreadable, taken: set[tuple[str, str, str | None]]) -> bool:
    if isinstance(item, Unreadable):
        return True
    stored = item.stored
    return (stored.prefix, stored.key, stored.suffix if stored.suppressed else None) in taken


def _binds(changes: Iterable[Change]) -> dict[str, list[str]]:
    items = list(changes)
    return {
        "prefixes": [found.stored.prefix for _, found, _, _ in items],
        "keys": [found.stored.key for _, found, _, _ in items],
        "suffixes": [found.stored.suffix for _, found, _, _ in items],
        "fields": [encoded(fields) for _, _, fields, _ in items],
    }


def _batches(wanted: Sequence[tuple[RecordKey, Decision]]) -> Iterator[dict[int, tuple[RecordKey, Decision]]]:
    """In order, at most a thousand at once, no key twice in one, records and control rows apart."""
    batch: dict[int, tuple[RecordKey, Decision]] = {}
    seen: set[RecordKey] = set()
    for place, item in enumerate(wanted):
        first = _is_control(next(iter(batch.values()))[0]) if batch else None
        if batch and (len(batch) == _BATCH or item[0] in seen or _is_control(item[0]) is not first):
            yield batch
            batch, seen = {}, set()
        batch[place] = item
        seen.add(item[0])
    if batch:
        yield batch


def _place(rule: Rule, row: Row, name: str) -> tuple[str, str] | None:
    """Where a new record goes by a rule: namespace and key; None where the rule does not say."""
    labels: list[str] = []
    for label in rule.namespace.split("."):
        if label.startswith("{"):
            said = row.get(label[1:-1])
            if not isinstance(said, str) or not said or "." in said:
                return None
            labels.append(said)
        elif label == "**":
            continue
        elif label == "*":
            return None
        else:
            labels.append(label)
    prefix = ".".join(labels)
    if rule.ids == "key":
        return (prefix, name) if prefix else None
    said = f"{prefix.replace('%', '%25').replace(':', '%3A')}:"
    return (prefix, name[len(said) :]) if name.startswith(said) and len(name) > len(said) else None


def _text_of(row: Row) -> str:
    """A control row as text; what is text in PostgreSQL may say NUL as JSON does."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        raise ValueError("a value that JSON cannot say") from None
    return text


def holds(row: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether every named field is still what it was, as JSON values: true is not 1, null is not absent."""
    return all(
        name not in row if value is MISSING else name in row and _same(row[name], value)
        for name, value in expected.items()
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return bool(left == right) or (left != left and right != right)
