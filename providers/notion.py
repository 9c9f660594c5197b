"""The Notion store: one page a record, in one data source (STORES.md, Notion; DESIGN §3 and §5).

Notion has no compare-and-set and three requests a second. So a write is a fresh reading, a check of its
condition, a PATCH of one property and a reading that verifies it; between check and PATCH another writer
can come, which is a declared gap. An answer that was lost is never guessed: the page is read.
Suppressing and restoring never send ``in_trash``; only :meth:`NotionProvider.purge_cache` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from fallow.providers import notion_pages as pages
from fallow.providers.kinds import NOTION
from fallow.providers.notion_cache import COMPLETE_AFTER, Kept, ScanCache, page_frame, page_schema
from fallow.providers.notion_calls import (
    API_VERSION,
    REQUESTS_PER_SECOND,
    Clock,
    ConflictError,
    LostAnswerError,
    NotionCalls,
    NotThereError,
    RefusedError,
    SharedPace,
    not_found,
    pace_file,
)
from fallow.providers.notion_pages import NotStorableError, Page, TooLargeError
from fallow.providers.snapshot import cache_folder

from fallow.model.errors import FallowError, SettingError, StoreUnreadableError, UsageError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import TYPE_ALIASES, Record, frame_of, read_record
from fallow.model.times import zone
from fallow.model.values import holds
from fallow.port.journal import SHARED, text_time
from fallow.port.protocol import Batch, Capabilities, Outcome, Patch, Unreadable

if TYPE_CHECKING:
    import polars as pl

BASE_URL: Final = "https://api.notion.com"
PAGE_SIZE: Final = 100
BATCH_ROWS: Final = 20_000
#: Ids asked for in one query.
_IDS_A_QUERY: Final = NOTION.capabilities.batch_size
#: How often a write is decided anew, or sent again after its answer was lost.
_ATTEMPTS: Final = 6
#: How often a created page whose answer was lost is looked for before it is created again.
_LOOKS: Final = 3
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z", re.ASCII)
_CHANGED: Final = "a requirement no longer holds"
_DOUBLED: Final = "duplicate id: on several pages"

#: What a write decides on a row as it stands: the fields to set, or an outcome's status and detail.
Decision = Mapping[str, Any] | tuple[str, str]
_Decide = Callable[[Row], Decision]
#: Whether a row shows that a change that was sent has landed.
_Settled = Callable[[Row, Mapping[str, Any]], bool]


def estimate_requests(*, scanned: int = 0, fetched: int = 0, patched: int = 0, inserted: int = 0) -> int:
    """How many requests it takes to scan, fetch, patch and insert that many records, when nothing goes wrong."""
    looked_up = -(-(fetched + patched) // _IDS_A_QUERY)
    return -(-scanned // PAGE_SIZE) + looked_up + 3 * patched + inserted + 2 * -(-inserted // _IDS_A_QUERY)


def estimate_seconds(*, scanned: int = 0, fetched: int = 0, patched: int = 0, inserted: int = 0) -> float:
    """How long that takes at Notion's pace, in seconds: an estimate to show before long work.

    Applying a plan of n records is about ``estimate_seconds(fetched=3 * n, patched=n, inserted=2 * n)``:
    each record is written once and has a journal entry and a head.
    """
    return estimate_requests(scanned=scanned, fetched=fetched, patched=patched, inserted=inserted) / REQUESTS_PER_SECOND


@dataclass(frozen=True, slots=True)
class _Schema:
    """The data source's properties: ids by name, and the memory types that its select knows."""

    ids: Mapping[str, str]
    types: frozenset[str]


class NotionProvider:
    """One data source (:class:`fallow.port.protocol.Provider`, ``Touching``, ``CachePurging`` and ``Snapshotting``).

    Args:
        data_source_id: which one, a UUID.
        token: the integration's secret; in no error, log or representation.
        naive_timezone: IANA zone by memory type for naive creation times.
        base_url: another address of the API; without TLS only on loopback.
        snapshot: keep decision fields in the user's cache folder between scans.
        folder: the cache folder; None keeps neither a snapshot nor a pace beyond this process.
        pace, clock: how fast, and by which clock; the shared pace and the real clock unless a test says otherwise.
        patience: seconds for which one request is tried again before the store counts as busy.
        timeout: seconds to wait for one answer.

    Raises:
        StoreNotFoundError: Notion shows no such data source to the integration.
        StoreUnreadableError: the token is not accepted, or the data source is no memory store.
        StoreBusyError: Notion does not answer.
        SettingError: a zone name is unknown, or no token is given.
    """

    def __init__(
        self,
        data_source_id: str,
        token: str,
        naive_timezone: Mapping[str, str] | None = None,
        *,
        base_url: str = BASE_URL,
        snapshot: bool = True,
        folder: Path | None = None,
        pace: SharedPace | None = None,
        clock: Clock | None = None,
        patience: float = 300.0,
        timeout: float = 60.0,
    ) -> None:
        try:
            self.data_source_id = str(UUID(data_source_id))
        except ValueError:
            raise UsageError(
                f"'{data_source_id[:60]}' is no data source id", hint="write notion:// and the id's 32 hex digits"
            ) from None
        if not token.strip():
            raise SettingError("no Notion token is given", hint="set NOTION_TOKEN to the integration's secret")
        if not re.fullmatch(r"[\x21-\x7e]+", token.strip()):
            raise SettingError("NOTION_TOKEN is no token", hint="copy the integration's secret again")
        self.snapshot = snapshot
        self._folder = folder
        self._naive_timezone = dict(naive_timezone or {})
        self._zones = {name: zone(value) for name, value in self._naive_timezone.items()}
        self._clock = clock or Clock()
        self._calls = NotionCalls(
            token.strip(),
            base_url=_checked_url(base_url),
            pace=pace or SharedPace(pace_file(folder, token.strip()), self._clock),
            clock=self._clock,
            patience=patience,
            timeout=timeout,
        )
        # Notion's queries can lag behind its writes: what this object wrote is known until a query shows it.
        self._written: dict[str, str] = {}
        self._created: dict[RecordKey, str] = {}
        try:
            self._schema = self._read_schema()
        except BaseException:
            self._calls.close()
            raise

    @classmethod
    def from_uri(cls, uri: str, naive_timezone: Mapping[str, str]) -> Self:
        """The store at ``notion://<data source id>``; the token comes from NOTION_TOKEN.

        ``?base_url=…`` names another address of the API, such as a proxy of one's own.

        Raises:
            UsageError: no data source id.
            SettingError: NOTION_TOKEN is not set.
        """
        parts = urlsplit(uri)
        base_url = (parse_qs(parts.query).get("base_url") or [BASE_URL])[0]
        return cls(
            parts.netloc or parts.path.strip("/"),
            os.environ.get("NOTION_TOKEN", ""),
            naive_timezone,
            base_url=base_url,
            folder=cache_folder(),
        )

    def __repr__(self) -> str:
        return f"NotionProvider({self.data_source_id!r})"

    @property
    def capabilities(self) -> Capabilities:
        return replace(NOTION.capabilities, requests_per_second=self._calls.pace.per_second)

    @property
    def naive_timezone(self) -> Mapping[str, str]:
        return self._naive_timezone

    @property
    def requests(self) -> int:
        """How many requests this object has sent, those sent again included."""
        return self._calls.sent

    def identity(self) -> str:
        """The data source's id: a copy of the database has another."""
        return f"notion:{self.data_source_id}"

    def close(self) -> None:
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The data source

    def _read_schema(self) -> _Schema:
        try:
            answer = self._calls.read("GET", f"data_sources/{self.data_source_id}")
        except NotThereError:
            raise not_found(self.data_source_id) from None
        except RefusedError as error:
            raise StoreUnreadableError(
                f"Notion refused the request: {error}", hint="check the data source id"
            ) from None
        found = answer.get("properties")
        found = found if isinstance(found, dict) else {}
        missing = [
            name
            for name, kind in pages.PROPERTIES.items()
            if not isinstance(found.get(name), dict) or found[name].get("type") != kind
        ]
        if missing:
            raise StoreUnreadableError(
                f"the data source lacks {', '.join(missing)}, or has them with another type",
                hint="name the data source that the agents write to, and leave its properties as they are",
            )
        options = (found[pages.MEMORY_TYPE].get("select") or {}).get("options") or ()
        return _Schema(
            ids={name: str(found[name].get("id")) for name in pages.PROPERTIES},
            types=frozenset(str(option.get("name")) for option in options),
        )

    def _listed_types(self, memory_type: str) -> list[str]:
        """The select options under which a type's pages stand; none where the data source has no such type.

        Notion refuses a filter on an option that does not exist.
        """
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        names = [canonical, *(old for old, new in TYPE_ALIASES.items() if new == canonical)]
        if canonical not in self._schema.types:
            self._schema = self._read_schema()
        return [name for name in names if name in self._schema.types]

    # Reading

    def _long_text(self, page_id: str, property_id: str) -> str:
        """A property's whole text, from its own endpoint: a page shows the first 25 segments only."""
        pieces: list[str] = []
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            query: dict[str, Any] = {"page_size": PAGE_SIZE}
            if cursor is not None:
                query["start_cursor"] = cursor
            answer = self._calls.read("GET", f"pages/{page_id}/properties/{property_id}", query=query)
            items = answer.get("results")
            if not isinstance(items, list):
                raise _cut_short("a property's segments")
            pieces += (pages.plain_text([item.get(str(item.get("type")))]) for item in items)
            cursor = _next(answer, seen, "a property's segments")
            if cursor is None:
                return "".join(pieces)

    def _read_page(self, answer: Any) -> Page:
        try:
            return pages.read_page(answer, self._long_text)
        except ValueError as error:
            raise StoreUnreadableError(
                f"Notion gave {error}", hint="give the integration the capability to read content"
            ) from None

    def _get(self, page_id: str) -> Page | None:
        """A page as it is now, or None where it is gone: in the trash, moved away, deleted."""
        try:
            answer = self._calls.read("GET", f"pages/{page_id}")
            parent = answer.get("parent") or {}
            if parent.get("data_source_id") != self.data_source_id:
                return None
            page = self._read_page(answer)
        except NotThereError:
            return None
        except RefusedError as error:
            raise StoreUnreadableError(f"Notion refused to show a page: {error}", hint="try again") from None
        return None if page.in_trash else page

    def _query(
        self, condition: Mapping[str, Any], *, newest_first: bool = False, in_trash: bool = False
    ) -> Iterator[dict[str, Any]]:
        """All page objects that fulfil the condition, each once.

        In the order of creation, which edits do not disturb; ``newest_first`` by the latest edit. Where
        Notion stops a long answer, or a cursor's page has left it meanwhile, the next query goes on
        from the creation time that was reached.

        Raises:
            StoreUnreadableError: the answer is cut short, and asking on from there gives nothing new.
        """
        given: set[str] = set()
        reached: str | None = None
        while True:
            parts: list[Any] = [condition]
            if reached is not None:
                parts.append({"timestamp": "created_time", "created_time": {"on_or_after": reached}})
            order = (
                {"timestamp": "last_edited_time", "direction": "descending"}
                if newest_first
                else {"timestamp": "created_time", "direction": "ascending"}
            )
            body: dict[str, Any] = {"filter": _all_of(parts), "sorts": [order], "page_size": PAGE_SIZE}
            if in_trash:
                body["in_trash"] = True
            fresh = 0
            cursors: set[str] = set()
            complete = False
            while True:
                try:
                    answer = self._calls.read("POST", f"data_sources/{self.data_source_id}/query", body=body)
                except NotThereError:
                    raise not_found(self.data_source_id) from None
                except RefusedError as error:
                    if "start_cursor" in body and fresh and not newest_first:
                        break
                    raise StoreUnreadableError(
                        f"Notion refused a query: {error}", hint="nothing is decided over part of a store; try again"
                    ) from None
                results = answer.get("results")
                if not isinstance(results, list):
                    raise _cut_short("a query")
                for page in results:
                    page_id = page.get("id") if isinstance(page, dict) else None
                    if not isinstance(page_id, str):
                        raise _cut_short("a query")
                    if page_id in given:
                        continue
                    given.add(page_id)
                    fresh += 1
                    reached = str(page.get("created_time") or "") or reached
                    yield page
                cursor = _next(answer, cursors, "a query")
                if cursor is None:
                    complete = not answer.get("request_status") or (answer["request_status"].get("type") == "complete")
                    break
                body["start_cursor"] = cursor
            if complete:
                return
            if not fresh or newest_first or reached is None:
                raise StoreUnreadableError(
                    "Notion stopped in the middle of a query and would not go on",
                    hint="it lists at most 10 000 pages at once: split the data source",
                )

    def _typed(self, names: Sequence[str]) -> dict[str, Any]:
        return _any_of([{"property": pages.MEMORY_TYPE, "select": {"equals": name}} for name in names])

    def _locate(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, list[Page]]:
        """The pages that stand under these ids, in the order in which they came to be."""
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        wanted = [name for name in dict.fromkeys(record_ids) if pages.is_record_id(name)]
        names = self._listed_types(memory_type) if wanted else []
        found: dict[str, list[Page]] = {name: [] for name in wanted}
        if not names:
            return found
        for start in range(0, len(wanted), _IDS_A_QUERY):
            chunk = wanted[start : start + _IDS_A_QUERY]
            condition = _all_of(
                [
                    self._typed(names),
                    _any_of([{"property": pages.RECORD_ID, "rich_text": {"equals": name}} for name in chunk]),
                ]
            )
            for answer in self._query(condition):
                page = self._settled(self._read_page(answer))
                # Notion compares without regard to case.
                if page is not None and page.record_id in found:
                    found[page.record_id].append(page)
            for name in chunk:
                unseen = self._created.get(RecordKey(canonical, name))
                if unseen is not None:
                    del self._created[RecordKey(canonical, name)]
                    if all(page.page_id != unseen for page in found[name]) and (own := self._get(unseen)) is not None:
                        self._created[RecordKey(canonical, name)] = unseen
                        found[name].append(own)
                found[name].sort(key=lambda page: page.rank)
        return found

    def _settled(self, page: Page) -> Page | None:
        """A page from a query, read again where the query still shows what was there before our own write."""
        if page.page_id in self._written and self._written[page.page_id] != page.metadata:
            fresh = self._get(page.page_id)
            if fresh is None or fresh.metadata == page.metadata:
                self._written.pop(page.page_id)
            else:
                self._written[page.page_id] = fresh.metadata
            return fresh
        return page

    def _one(self, memory_type: str, found: Sequence[Page]) -> Page | Unreadable | None:
        """The one page that stands for an id.

        Doubled records are unreadable, both of them. Of doubled control rows, which are inserted and
        read back, the first that came to be stands for everybody.
        """
        if not found:
            return None
        first = found[0]
        key = RecordKey(TYPE_ALIASES.get(memory_type, memory_type), first.record_id)
        if len(found) > 1 and memory_type != SHARED:
            return Unreadable(key, _DOUBLED)
        return first if first.row is not None else Unreadable(key, first.problem)

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        names = self._listed_types(canonical)
        if not names:
            return
        if page_schema().keys() >= set(columns):
            yield from _batches(canonical, self._refresh(canonical, names), columns)
            return
        records: dict[str, Record] = {}
        reasons: dict[str, str] = {}
        for _, reason, record in self._records(canonical, self._query(self._typed(names))):
            name = record.record_id
            if name in records or name in reasons:
                reasons[name] = _DOUBLED
                records.pop(name, None)
            elif reason is not None:
                reasons[name] = reason
            else:
                records[name] = record
        ordered = [records[name] for name in sorted(records)]
        bad = tuple(Unreadable(RecordKey(canonical, name), reasons[name]) for name in sorted(reasons))
        for start in range(0, max(len(ordered), 1), BATCH_ROWS):
            chunk = ordered[start : start + BATCH_ROWS]
            if chunk or bad:
                yield Batch(frame_of(chunk, columns, [None] * len(chunk)), bad)
                bad = ()

    def _records(self, canonical: str, answers: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str | None, Record]]:
        """Page objects as (page id, why it is no record, record)."""
        naive_zone = self._zones.get(canonical, zone("UTC"))
        for answer in answers:
            page = self._settled(self._read_page(answer))
            if page is None:
                continue
            if page.row is None:
                yield page.page_id, page.problem, Record(record_id=page.record_id, memory_type=canonical)
            else:
                yield page.page_id, None, read_record(page.row, canonical, page.record_id, naive_zone)

    def _refresh(self, canonical: str, names: Sequence[str]) -> pl.DataFrame:
        """Every page of a type as kept rows: the cache with what was edited since, or all read anew."""
        import polars as pl

        typed = self._typed(names)
        cache = None
        if self.snapshot and self._folder is not None:
            zone_name = self._naive_timezone.get(canonical, "UTC")
            cache = ScanCache(self._folder, self.identity(), canonical, zone_name)
        kept = cache.load() if cache is not None else None
        now = self._clock.now()
        changes = None
        if kept is not None and kept.newest and 0 <= now - kept.complete_at < COMPLETE_AFTER:
            changes = self._edited_since(kept, typed)
        if kept is not None and changes is not None:
            edited, trashed = changes
            newest = str(edited[0].get("last_edited_time")) if edited else kept.newest
            fresh = page_frame(self._records(canonical, edited))
            replaced = pl.Series([*(page["id"] for page in edited), *trashed], dtype=pl.String)
            frame = pl.concat([kept.frame.filter(~pl.col("page_id").is_in(replaced.implode())), fresh])
            complete_at = kept.complete_at
        else:
            newest = self._newest(typed) if cache is not None else ""
            frame = page_frame(self._records(canonical, self._query(typed)))
            complete_at = now
        if cache is not None:
            cache.store(Kept(frame, newest, complete_at))
        return frame

    def _edited_since(self, kept: Kept, typed: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]] | None:
        """What was edited since a scan, newest first, and the ids of what is in the trash; None for too much."""
        since = {"timestamp": "last_edited_time", "last_edited_time": {"on_or_after": kept.since}}
        condition = _all_of([typed, since])
        try:
            edited = list(self._query(condition, newest_first=True))
            trashed = [page["id"] for page in self._query(condition, newest_first=True, in_trash=True)]
        except StoreUnreadableError:
            return None
        return edited, trashed

    def _newest(self, typed: Mapping[str, Any]) -> str:
        """The newest edit of any page of a type, by Notion's own clock; empty where there is none."""
        for page in self._query(typed, newest_first=True):
            return str(page.get("last_edited_time") or "")
        return ""

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        rows: dict[str, Row | Unreadable] = {}
        for name, found in self._locate(memory_type, record_ids).items():
            one = self._one(memory_type, found)
            if isinstance(one, Unreadable):
                rows[name] = one
            elif one is not None and one.row is not None:
                rows[name] = one.row
        return rows

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        names = self._listed_types(memory_type)
        found: dict[str, list[Page]] = {}
        if names:
            parts = [self._typed(names)]
            if id_prefix:
                parts.append({"property": pages.RECORD_ID, "rich_text": {"starts_with": id_prefix}})
            for answer in self._query(_all_of(parts)):
                page = self._settled(self._read_page(answer))
                if page is not None and page.record_id.startswith(id_prefix):
                    found.setdefault(page.record_id, []).append(page)
            unseen = [
                key.record_id
                for key in self._created
                if key.memory_type == canonical and key.record_id.startswith(id_prefix) and key.record_id not in found
            ]
            found.update(self._locate(memory_type, unseen) if unseen else {})
        for name in sorted(found):
            one = self._one(memory_type, sorted(found[name], key=lambda page: page.rank))
            if isinstance(one, Page) and one.row is not None:
                yield one.row

    # Writing

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        def deciding(patch: Patch) -> _Decide:
            def decide(row: Row) -> Decision:
                return patch.changes if holds(row, patch.expected) else ("changed", _CHANGED)

            return decide

        return self._write([(patch.key, deciding(patch), holds) for patch in patches])

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)

        def decide(row: Row) -> Decision:
            record = read_record(row, canonical, str(row["_id"]))
            if record.retention_state == "suppressed":
                return ("changed", "suppressed")
            changes: dict[str, Any] = {"access_count": record.access_count + 1}
            if record.last_accessed_at is None or now > record.last_accessed_at:
                changes["last_accessed_at"] = text_time(now)
            return changes

        def settled(row: Row, sent: Mapping[str, Any]) -> bool:
            # Another touch on top of ours keeps it: a count is never taken back.
            record = read_record(row, canonical, str(row["_id"]))
            return record.access_count >= int(sent["access_count"])

        return self._write([(RecordKey(canonical, record_id), decide, settled) for record_id in record_ids])

    def _write(self, writes: Sequence[tuple[RecordKey, _Decide, _Settled]]) -> list[Outcome]:
        """One outcome a write, in order.

        Raises:
            StoreBusyError, StoreUnreadableError, StoreUnwritableError: before anything was written.
        """
        places: dict[RecordKey, list[Page]] = {}
        by_type: dict[str, list[str]] = {}
        for key, _, _ in writes:
            by_type.setdefault(key.memory_type, []).append(key.record_id)
        for memory_type, ids in by_type.items():
            for record_id, found in self._locate(memory_type, ids).items():
                places[RecordKey(memory_type, record_id)] = found

        def writing(decide: _Decide, settled: _Settled) -> Callable[[RecordKey, str], Outcome]:
            return lambda key, page_id: self._write_one(key, page_id, decide, settled)

        return self._each(places, [(key, writing(decide, settled)) for key, decide, settled in writes])

    def _each(
        self,
        places: Mapping[RecordKey, Sequence[Page]],
        actions: Sequence[tuple[RecordKey, Callable[[RecordKey, str], Outcome]]],
    ) -> list[Outcome]:
        """Does each action on its record's page. One bad record does not stop the others; a store that stopped does.

        Raises:
            FallowError: the store stopped before anything was done.
        """
        outcomes: list[Outcome] = []
        stopped: FallowError | None = None
        for key, act in actions:
            one = self._one(key.memory_type, places.get(key, ()))
            if one is None:
                outcomes.append(Outcome(key, "gone"))
            elif isinstance(one, Unreadable):
                outcomes.append(Outcome(key, "failed", f"unreadable: {one.reason}"))
            elif stopped is not None:
                outcomes.append(Outcome(key, "failed", f"not tried: {stopped.message}"))
            else:
                try:
                    outcomes.append(act(key, one.page_id))
                except FallowError as error:
                    if not any(outcome.status in {"applied", "unknown"} for outcome in outcomes):
                        raise
                    stopped = error
                    outcomes.append(Outcome(key, "failed", error.message))
        return outcomes

    def _write_one(self, key: RecordKey, page_id: str, decide: _Decide, settled: _Settled) -> Outcome:
        """GET, check, PATCH, GET (STORES.md). What an answer left open is settled by the next GET."""
        sent: Mapping[str, Any] | None = None
        text = ""
        detail = ""
        for attempt in range(_ATTEMPTS):
            try:
                page = self._get(page_id)
            except FallowError:
                if sent is None:
                    raise
                return Outcome(key, "unknown", "Notion did not show what became of it")
            if page is None:
                return Outcome(key, "gone")
            if page.row is None:
                return Outcome(key, "failed", f"unreadable: {page.problem}")
            if sent is not None and (page.metadata == text or settled(page.row, sent)):
                self._written[page_id] = page.metadata
                return Outcome(key, "applied")
            decision = decide(page.row)
            if isinstance(decision, tuple):
                return Outcome(key, "changed", decision[1])
            try:
                properties = pages.changed_properties(page, decision)
                body = {"properties": properties}
                pages.check_request(body)
                text = "".join(item["text"]["content"] for item in properties[pages.METADATA]["rich_text"])
                if text == page.metadata and len(properties) == 1:
                    return Outcome(key, "applied")
                self._calls.write("PATCH", f"pages/{page_id}", body)
                sent = decision
            except (TooLargeError, NotStorableError) as error:
                return Outcome(key, "failed", str(error))
            except LostAnswerError as error:
                sent, detail = decision, str(error)
                self._calls.back_off(attempt)
            except ConflictError as error:
                detail = str(error)
                self._calls.back_off(attempt)
            except NotThereError:
                return Outcome(key, "gone")
            except RefusedError as error:
                # A page that went to the trash meanwhile refuses edits.
                if self._get(page_id) is None:
                    return Outcome(key, "gone")
                return Outcome(key, "failed", f"Notion refused it: {error}")
            except FallowError as error:
                if sent is None:
                    raise
                return Outcome(key, "unknown", error.message)
        if sent is None:
            return Outcome(key, "failed", f"Notion could not do it: {detail}")
        return Outcome(
            key, "unknown", f"another writer took the change back, or its answers were lost {detail}".strip()
        )

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        keys = [RecordKey(canonical, row["_id"] if isinstance(row.get("_id"), str) else "") for row in rows]
        outcomes: list[Outcome | None] = [None] * len(rows)
        taken = self._locate(canonical, [key.record_id for key in keys]) if rows else {}
        created: dict[int, str] = {}
        stopped: FallowError | None = None
        mine: set[str] = set()
        for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
            if not _TYPE_NAME.match(canonical):
                outcomes[number] = Outcome(key, "failed", "invalid memory type: the store cannot hold it")
            elif not pages.is_record_id(key.record_id):
                outcomes[number] = Outcome(key, "failed", "invalid record id: the store cannot hold it")
            elif taken.get(key.record_id) or key.record_id in mine:
                outcomes[number] = Outcome(key, "already")
            elif stopped is not None:
                outcomes[number] = Outcome(key, "failed", f"not tried: {stopped.message}")
            else:
                try:
                    made = self._create(key, row)
                except FallowError as error:
                    if not created:
                        raise
                    stopped = error
                    made = Outcome(key, "failed", error.message)
                if isinstance(made, Outcome):
                    outcomes[number] = made
                else:
                    created[number] = made
                    mine.add(key.record_id)
        self._confirm(canonical, keys, created, outcomes)
        return [outcome or Outcome(key, "unknown") for key, outcome in zip(keys, outcomes, strict=True)]

    def _create(self, key: RecordKey, row: Row) -> str | Outcome:
        """The id of the new page, or what became of it instead."""
        try:
            properties = pages.page_properties(row, key.memory_type)
            body = {
                "parent": {"type": "data_source_id", "data_source_id": self.data_source_id},
                "properties": properties,
            }
            pages.check_request(body)
        except (TooLargeError, NotStorableError) as error:
            return Outcome(key, "failed", str(error))
        text = "".join(item["text"]["content"] for item in properties[pages.METADATA]["rich_text"])
        detail = ""
        lost = False
        for attempt in range(_ATTEMPTS):
            try:
                try:
                    answer = self._calls.write("POST", "pages", body)
                except LostAnswerError as error:
                    lost, detail = True, str(error)
                    found = self._look_for(key)
                    if found:
                        return found[0].page_id if found[0].metadata == text else Outcome(key, "already")
                    continue
            except ConflictError as error:
                detail = str(error)
                self._calls.back_off(attempt)
            except (RefusedError, NotThereError) as error:
                return Outcome(key, "failed", f"Notion refused it: {error}")
            except FallowError as error:
                if not lost:
                    raise
                return Outcome(key, "unknown", error.message)
            else:
                page_id = str(answer.get("id"))
                self._created[key] = page_id
                self._written[page_id] = text
                return page_id
        return Outcome(key, "unknown", f"Notion did not say whether it was stored: {detail}")

    def _look_for(self, key: RecordKey) -> list[Page]:
        """The pages of a row whose creation was not answered: looked for more than once, queries can lag."""
        for look in range(_LOOKS):
            self._calls.back_off(look)
            if found := self._locate(key.memory_type, [key.record_id])[key.record_id]:
                return found
        return []

    def _confirm(
        self,
        memory_type: str,
        keys: Sequence[RecordKey],
        created: Mapping[int, str],
        outcomes: list[Outcome | None],
    ) -> None:
        """Reads created rows back: of two inserts of one id at once, the page that came first is the row."""
        try:
            found = self._locate(memory_type, [keys[number].record_id for number in created]) if created else {}
        except FallowError:
            for number in created:
                outcomes[number] = Outcome(keys[number], "unknown", "Notion did not show what became of it")
            return
        for number, page_id in created.items():
            key = keys[number]
            standing = found.get(key.record_id) or []
            if not standing:
                outcomes[number] = Outcome(key, "unknown", "Notion does not show it")
            elif standing[0].page_id != page_id:
                outcomes[number] = Outcome(key, "already")
            elif standing[0].row is None:
                outcomes[number] = Outcome(key, "failed", f"it reads back differently: {standing[0].problem}")
            else:
                outcomes[number] = Outcome(key, "applied")

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        """Moves expired cache entries to Notion's trash, where they can be had back for 30 days (SPEC §11)."""
        kind = "semantic_cache"
        places = self._locate(kind, expected)
        found = {RecordKey(kind, record_id): pages_found for record_id, pages_found in places.items()}

        def purging(required: Mapping[str, Any]) -> Callable[[RecordKey, str], Outcome]:
            return lambda key, page_id: self._purge_one(key, page_id, required)

        return self._each(
            found, [(RecordKey(kind, record_id), purging(required)) for record_id, required in expected.items()]
        )

    def _purge_one(self, key: RecordKey, page_id: str, required: Mapping[str, Any]) -> Outcome:
        sent = False
        detail = ""
        for attempt in range(_ATTEMPTS):
            try:
                page = self._get(page_id)
            except FallowError as error:
                if not sent:
                    raise
                return Outcome(key, "unknown", error.message)
            if page is None:
                return Outcome(key, "applied" if sent else "gone")
            if page.row is None:
                return Outcome(key, "failed", f"unreadable: {page.problem}")
            if not holds(page.row, required):
                return Outcome(key, "changed", _CHANGED)
            try:
                self._calls.write("PATCH", f"pages/{page_id}", {"in_trash": True})
                sent = True
            except (LostAnswerError, ConflictError) as error:
                sent = sent or isinstance(error, LostAnswerError)
                detail = str(error)
                self._calls.back_off(attempt)
            except NotThereError:
                return Outcome(key, "gone")
            except RefusedError as error:
                if self._get(page_id) is None:
                    return Outcome(key, "applied" if sent else "gone")
                return Outcome(key, "failed", f"Notion refused it: {error}")
        return Outcome(key, "unknown" if sent else "failed", detail or "Notion did not do it")

    def diagnose(self) -> list[tuple[str, str, str]]:
        """What ``fallow doctor`` says beyond the connection: the pace, and what can be written."""
        shared = "shared with every process of this user" if self._folder is not None else "within this process only"
        return [
            ("notion api", "info", f"version {API_VERSION}, {REQUESTS_PER_SECOND:g} requests a second, {shared}"),
            (
                "notion writes",
                "warning",
                "no compare-and-set: an edit between check and write can be lost; plan and apply when agents rest",
            ),
            ("notion time", "info", f"applying 500 records takes about {_minutes(500)} minutes"),
        ]


def _minutes(records: int) -> int:
    seconds = estimate_seconds(fetched=3 * records, patched=records, inserted=2 * records)
    return max(1, round(seconds / 60))


def _checked_url(base_url: str) -> str:
    """The API's address, refused where the token would go over the network in the clear."""
    parts = urlsplit(base_url)
    loopback = parts.hostname in {"127.0.0.1", "::1", "localhost"}
    if parts.scheme not in {"https", "http"} or not parts.hostname or (parts.scheme == "http" and not loopback):
        raise UsageError("base_url is no address that a token may be sent to", hint="use https://, or http on loopback")
    return base_url.rstrip("/")


def _all_of(parts: Sequence[Any]) -> dict[str, Any]:
    """Conditions joined by and; one that is itself an and is joined flat, for Notion allows two levels."""
    flat: list[Any] = []
    for part in parts:
        flat += part["and"] if set(part) == {"and"} else [part]
    return flat[0] if len(flat) == 1 else {"and": flat}


def _any_of(parts: Sequence[Any]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else {"or": list(parts)}


def _next(answer: Mapping[str, Any], seen: set[str], what: str) -> str | None:
    """The cursor of the next page of an answer, None at its end.

    Raises:
        StoreUnreadableError: it says that there is more and not where, or goes in a circle.
    """
    if answer.get("has_more") is False:
        return None
    cursor = answer.get("next_cursor")
    if answer.get("has_more") is not True or not isinstance(cursor, str) or cursor in seen:
        raise _cut_short(what)
    seen.add(cursor)
    return cursor


def _cut_short(what: str) -> StoreUnreadableError:
    return StoreUnreadableError(
        f"Notion's answer to {what} is cut short", hint="nothing is decided over part of a store; try again"
    )


def _batches(canonical: str, frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[Batch]:
    """Kept rows as batches, ordered by id: doubled ids are unreadable."""
    import polars as pl

    frame = frame.with_columns(
        pl.when(pl.col("record_id").is_duplicated()).then(pl.lit(_DOUBLED)).otherwise(pl.col("reason")).alias("reason")
    )
    odd = frame.filter(pl.col("reason").is_not_null()).unique("record_id").sort("record_id")
    bad = tuple(
        Unreadable(RecordKey(canonical, name), reason) for name, reason in odd.select("record_id", "reason").iter_rows()
    )
    good = frame.filter(pl.col("reason").is_null()).sort("record_id")
    for start in range(0, max(good.height, 1), BATCH_ROWS):
        piece = good.slice(start, BATCH_ROWS)
        if piece.height or bad:
            yield Batch(piece.select(list(columns)), bad)
            bad = ()
