"""LangGraph's store with recalls counted and searches ranked (SPEC §2, §4): a ``BaseStore`` around another.

Counting is off the caller's path: what was read is handed to one thread that writes it in batches, over fallow's own
connection. A search asks the inner store for more than was wanted, ranks them by recency, importance and likeness,
and gives the best. What is put, deleted or listed goes to the inner store as it is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from fallow.model.errors import FallowError
from fallow.model.keys import RecordKey
from fallow.model.scoring import RetrievalScoring
from fallow.model.times import wall_clock
from fallow.ranking.scoring import score_candidates
from langgraph.store.base import BaseStore, GetOp, Item, Op, Result, SearchItem, SearchOp

from fallow_langgraph.mapping import record_id
from fallow_langgraph.provider import LangGraphProvider

log = logging.getLogger(__name__)

#: Recalls that wait to be written; more are dropped and counted, for an agent is never held up by its bookkeeping.
_WAITING: Final = 100_000
#: Where a candidate keeps its place among the results; nothing that an agent stores can be called so.
_PLACE: Final = "\0place"


class GovernedStore(BaseStore):
    """A store that counts what is read, and ranks what is found.

    Args:
        store: LangGraph's own store, sync or async.
        uri: the same database as fallow reads it, ``langgraph+postgresql://…``.
        scoring: weights of the ranking; None: the environment's, else the defaults.
        widen: how many times as many results as wanted are ranked, at most ``most``.
        most: see ``widen``.
        every: seconds between two writes of recalls.

    Raises:
        FallowError: the address leads to no store.
    """

    def __init__(
        self,
        store: BaseStore,
        uri: str,
        *,
        scoring: RetrievalScoring | None = None,
        widen: int = 4,
        most: int = 200,
        every: float = 1.0,
    ) -> None:
        self.store = store
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config
        self.scoring = scoring if scoring is not None else RetrievalScoring()
        self._widen, self._most = max(1, widen), most
        self._reader = LangGraphProvider.from_uri(uri, {})
        self._recalls = _Recalls(uri, every)

    # What a caller asks

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """As the inner store answers, its searches ranked, what is given counted."""
        asked = list(ops)
        given = self._given(asked, self.store.batch([self._wider(op) for op in asked]))
        refreshed = self._refreshes(asked, given)
        if refreshed:
            self.store.batch(refreshed)
        return given

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same; the ranking's one look-up is made in another thread."""
        asked = list(ops)
        found = await self.store.abatch([self._wider(op) for op in asked])
        if not any(isinstance(op, SearchOp) for op in asked):
            return self._given(asked, found)
        given = await asyncio.to_thread(self._given, asked, found)
        refreshed = self._refreshes(asked, given)
        if refreshed:
            await self.store.abatch(refreshed)
        return given

    def flush(self) -> None:
        """Returns when every recall so far is in the store, or was given up for a fault that is logged."""
        self._recalls.flush()

    def close(self) -> None:
        """Writes what is left and lets go of fallow's connections; the inner store stays open."""
        self._recalls.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # Ranking

    def _wider(self, op: Op) -> Op:
        if not isinstance(op, SearchOp):
            return op
        wanted = op.limit + op.offset
        refresh = op.refresh_ttl and self.store.ttl_config is None
        limit = max(wanted, min(wanted * self._widen, self._most))
        return op._replace(limit=limit, offset=0, refresh_ttl=refresh)

    def _refreshes(self, ops: Sequence[Op], results: Sequence[Result]) -> list[GetOp]:
        """Where the store has expiries: those of what was given are refreshed, not of what was only looked at."""
        if self.store.ttl_config is None:
            return []
        return [
            GetOp(item.namespace, item.key, True)
            for op, result in zip(ops, results, strict=True)
            if isinstance(op, SearchOp) and op.refresh_ttl and isinstance(result, list)
            for item in result
            if isinstance(item, SearchItem)
        ]

    def _given(self, ops: Sequence[Op], results: Sequence[Result]) -> list[Result]:
        answer: list[Result] = []
        read: list[Item] = []
        for op, result in zip(ops, results, strict=True):
            given = result
            if isinstance(op, SearchOp) and isinstance(result, list):
                given = self._ranked([item for item in result if isinstance(item, SearchItem)])[
                    op.offset : op.offset + op.limit
                ]
                read += given
            elif isinstance(op, GetOp) and isinstance(result, Item):
                read.append(result)
            answer.append(given)
        self._recalls.add([key for item in read if (key := self._key(item)) is not None])
        return answer

    def _ranked(self, items: list[SearchItem]) -> list[SearchItem]:
        """Best first, by SPEC §2.1; a store that cannot be asked leaves them as they came."""
        if len(items) < 2:
            return items
        try:
            rows = self._rows(items)
        except FallowError as error:
            log.warning("results are not ranked: %s", error)
            return items
        for place, (row, item) in enumerate(zip(rows, items, strict=True)):
            row[_PLACE] = place
            if item.score is not None:
                row["score"] = item.score
        return [items[row[_PLACE]] for row in score_candidates(rows, scoring=self.scoring, now=wall_clock())]

    def _rows(self, items: Sequence[SearchItem]) -> list[dict[str, Any]]:
        """What fallow knows of each: one look-up a memory type; what no rule maps has its times alone."""
        keys = [self._key(item) for item in items]
        by_type: dict[str, list[str]] = {}
        for key in keys:
            if key is not None:
                by_type.setdefault(key.memory_type, []).append(key.record_id)
        known = {kind: self._reader.fetch(kind, names) for kind, names in by_type.items()}
        rows: list[dict[str, Any]] = []
        for key, item in zip(keys, items, strict=True):
            row = known[key.memory_type].get(key.record_id) if key is not None else None
            plain = {
                "_id": f"{'.'.join(item.namespace)}:{item.key}",
                "content": str(item.value),
                "created_at": item.created_at,
                "last_accessed_at": item.updated_at,
            }
            rows.append(dict(row) if isinstance(row, Mapping) else plain)
        return rows

    def _key(self, item: Item) -> RecordKey | None:
        prefix = ".".join(item.namespace)
        rule = self._reader.mapping.rule_of(prefix)
        return None if rule is None else RecordKey(rule.memory_type, record_id(rule, prefix, item.key))


class _Recalls:
    """Recalls on their way into the store: one thread, one connection, batches."""

    def __init__(self, uri: str, every: float) -> None:
        self._uri, self._every = uri, every
        self._waiting: list[RecordKey] = []
        self.dropped = 0
        self._changed = threading.Condition()
        self._writing = self._closed = self._asked = False
        self._thread: threading.Thread | None = None

    def add(self, keys: Sequence[RecordKey]) -> None:
        """Notes them, and returns at once."""
        if not keys:
            return
        with self._changed:
            if self._closed:
                return
            room = max(0, _WAITING - len(self._waiting))
            self._waiting += keys[:room]
            self.dropped += max(0, len(keys) - room)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="fallow-recalls", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        with self._changed:
            self._asked = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._writing)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        provider: LangGraphProvider | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._asked, timeout=self._every)
                keys, self._waiting, self._asked = self._waiting, [], False
                self._writing, ends = bool(keys), self._closed
            try:
                if keys:
                    provider = provider or LangGraphProvider.from_uri(self._uri, {})
                    _write(provider.touch_many, keys)
            except Exception as error:  # a fault of counting ends neither the thread nor the agent
                self.dropped += len(keys)
                log.warning("%d recalls are not counted: %s", len(keys), error)
            finally:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()
            if ends:
                break
        if provider is not None:
            provider.close()


def _write(touch: Callable[[str, Sequence[str], int], Any], keys: Sequence[RecordKey]) -> None:
    by_type: dict[str, list[str]] = {}
    for key in keys:
        by_type.setdefault(key.memory_type, []).append(key.record_id)
    for memory_type, names in by_type.items():
        touch(memory_type, names, wall_clock())
