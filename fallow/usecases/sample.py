"""A sample store of our own: a year in the life of a small orchard's agents, for the demo, the docs and tests.

Everything is made up and follows from the arguments: the same seed, ``now`` and size give the same rows,
byte for byte, on every host. The rows have the shapes that agents write (STORES.md) and, on purpose, the
untidiness that real stores show: every spelling of a pin, ratings on some rows only, naive times beside
offsets and epochs, records that nobody owns, and values that cannot be used.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta, timezone
from functools import cache
from typing import Any, Final

from fallow.model.errors import StoreUnwritableError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import read_record
from fallow.model.times import MICROSECONDS_PER_DAY, from_microseconds, iso
from fallow.plans.events import forgotten_key
from fallow.port.journal import change_id, change_row, control_event, head_id, head_row
from fallow.port.protocol import Outcome, Provider

#: Length of the sample vectors.
EMBEDDING_LENGTH: Final = 32

_MINUTE: Final = 60 * 1_000_000
_HOUR: Final = 60 * _MINUTE
#: What each kind of message is worth to a reader, roughly; the sample's stored ratings scatter around it.
_WORTH: Final[Mapping[str, float]] = {
    "chat": 0.1,
    "tool": 0.15,
    "question": 0.35,
    "answer": 0.45,
    "fact": 0.55,
    "preference": 0.7,
    "commitment": 0.75,
    "correction": 0.75,
    "decision": 0.85,
}

_Message = tuple[str, str, str]  # kind, role, text

#: Conversations by agent: what people ask an orchard's assistants over a year.
_EPISODES: Final[Mapping[str, tuple[tuple[_Message, ...], ...]]] = {
    "agent-orchard": (
        (
            ("chat", "user", "Morning! Cold one today."),
            ("chat", "assistant", "Good morning, {person}. Minus {small} on the top terrace at sunrise."),
            ("question", "user", "Is row {row} safe from the frost tonight?"),
            ("tool", "tool", "frost_watch: station={place} low=-{small}C humidity={number}%"),
            ("answer", "assistant", "Row {row} dips below zero from three o'clock; the {variety} there are in bud."),
            ("decision", "user", "Then we decided: burners on in row {row}, fans stay off."),
            ("commitment", "assistant", "I will remind {person} at half past two to light the burners in row {row}."),
        ),
        (
            ("question", "user", "How many trees of {variety} do we still have by {place}?"),
            ("tool", "tool", "tree_count: variety={variety} place={place} trees={number}"),
            ("answer", "assistant", "{number} trees of {variety}, most of them planted by {place}."),
            ("correction", "user", "No, that is wrong: {small} of those were grafted over to {other} last March."),
            ("fact", "assistant", "Noted: {small} of the {variety} by {place} now carry {other}."),
        ),
        (
            ("question", "user", "When did we last prune row {row}?"),
            ("answer", "assistant", "{person} pruned row {row} on a {day}, about {small} weeks after the thaw."),
            ("preference", "user", "I prefer that we never prune {variety} before the sap rises."),
            ("chat", "assistant", "Understood."),
            ("chat", "user", "Thanks!"),
        ),
        (
            ("fact", "user", "The pump at {place} is leaking again, {small} litres an hour or so."),
            ("tool", "tool", "water_meter: place={place} flow={number} l/h drift=+{small}%"),
            ("answer", "assistant", "The meter at {place} agrees: {small} percent more than last {day}."),
            ("commitment", "user", "I promised {person} to have it sealed by {day}."),
            ("chat", "assistant", "All right."),
        ),
        (
            ("chat", "user", "Hello again"),
            ("question", "user", "Which bins go to the press first, {variety} or {other}?"),
            ("answer", "assistant", "{variety} first: they were picked {small} days earlier and will not keep."),
            ("decision", "user", "Agreed. {variety} on {day}, {other} the week after. That is final."),
            ("tool", "tool", "press_queue: [{variety}:{number}, {other}:{small}]"),
            ("chat", "user", "ok great"),
        ),
        (
            ("question", "user", "Did the bees come back to {place}?"),
            ("tool", "tool", "hive_scale: place={place} weight={number}kg change=-{small}kg"),
            ("answer", "assistant", "Hive {small} at {place} lost weight, the others are flying."),
            ("fact", "user", "{person} says hive {small} was requeened on {day}."),
            ("chat", "user", "lovely"),
        ),
        (
            ("question", "user", "What did the soil laboratory say about row {row}?"),
            ("fact", "assistant", "Row {row}: potash low, acidity fine, {small} millimetres of topsoil lost."),
            ("decision", "user", "We will leave row {row} fallow until autumn and sow clover."),
            ("commitment", "assistant", "I will put clover seed for row {row} on the order list of {day}."),
            ("chat", "user", "cheers"),
        ),
    ),
    "agent-kitchen": (
        (
            ("question", "user", "How much sugar for a batch of {variety} jelly?"),
            ("answer", "assistant", "{number} kilos for the large kettle, a little less when {variety} is late."),
            ("correction", "user", "Actually no: {person} cut it to {small} kilos, people found it too sweet."),
            ("fact", "assistant", "Noted: {variety} jelly takes {small} kilos of sugar a kettle."),
            ("chat", "user", "perfect"),
        ),
        (
            ("chat", "user", "Hi there"),
            ("question", "user", "How many jars of {variety} are left on shelf {row}?"),
            ("tool", "tool", "shelf_scan: shelf={row} jars={number} broken={small}"),
            ("answer", "assistant", "{number} jars on shelf {row}; {small} have a loose lid."),
            ("commitment", "user", "I will have them relabelled before the market on {day}."),
        ),
        (
            ("preference", "user", "Please always give weights in grams, I never use ounces."),
            ("chat", "assistant", "Grams it is."),
            ("question", "user", "Which kettle did we use for the {other} chutney?"),
            ("answer", "assistant", "Kettle {small}, on a {day}; it took {number} minutes."),
            ("chat", "user", "thank you"),
        ),
        (
            ("fact", "user", "{person} is allergic to walnuts: keep them out of every {variety} batch."),
            ("decision", "assistant", "Agreed: no walnuts in the kitchen while {person} works there."),
            ("tool", "tool", "recipe_check: walnuts=0 recipes={number}"),
            ("chat", "user", "good"),
        ),
        (
            ("question", "user", "What does {place} pay for a case of juice?"),
            ("tool", "tool", "price_list: buyer={place} case={number} year={small}"),
            ("answer", "assistant", "{place} pays {number} a case, settled on {day}."),
            ("decision", "user", "From the new season we go with {number} a case for everyone."),
            ("chat", "assistant", "Noted."),
        ),
    ),
    "agent-visitors": (
        (
            ("chat", "user", "Good afternoon!"),
            ("question", "user", "Can we bring {small} children to the picking on {day}?"),
            ("answer", "assistant", "Yes, {small} children are welcome; meet at {place}."),
            ("commitment", "assistant", "I have booked {small} baskets for you on {day}."),
            ("chat", "user", "wonderful, see you then"),
        ),
        (
            ("question", "user", "Is the path to {place} fit for a wheelchair?"),
            ("answer", "assistant", "The lower path is; the last {number} metres to {place} are gravel."),
            ("preference", "user", "Then I would rather have the tour in the barn."),
            ("tool", "tool", "tour_slots: day={day} free={small}"),
            ("chat", "assistant", "You are down for the barn on {day}."),
        ),
    ),
}

#: (namespace, text) of what was ingested into the knowledge bases.
_KNOWLEDGE: Final = (
    ("growing", "{variety} wants a cold winter and a south wall; it sulks by {place}."),
    ("growing", "Thin {variety} to one fruit a spur by the end of June, or it bears every second year."),
    ("growing", "Scab shows on {variety} {small} days after a warm rain; cut out what is spotted."),
    ("growing", "Graft {other} on dwarf stock for row {row}: the old stock there runs to wood."),
    ("growing", "Clover between the rows feeds the trees and the bees of {place}."),
    ("press", "Let the pomace of {variety} stand {small} hours before pressing; the juice runs clearer."),
    ("press", "Blend {variety} with {other}, {small} to one: sharp enough to keep, sweet enough to sell."),
    ("press", "Wash the cloths of the press on {day}; they sour after {small} days."),
    ("kitchen", "Jelly of {variety} sets without pectin when the fruit is picked a week early."),
    ("kitchen", "A kettle of chutney fills {number} jars of the small size."),
    ("kitchen", "Lids from lot {number} do not seal; {person} sent them back."),
    ("visits", "Groups above {small} people need a second guide from {place} onwards."),
    ("visits", "The barn seats {number}; the loft stays closed in wind."),
    ("accounts", "{place} settles on the last {day} of a month, by transfer."),
)

_WORKFLOWS: Final = (
    (
        "water row {row}",
        "Open the valve of row {row} until the meter says {number} litres.",
        ("read_meter", "open_valve"),
    ),
    ("order jars", "Count the jars, order what is missing for {variety}.", ("shelf_scan", "place_order")),
    ("frost alarm {place}", "Watch the low of {place} and wake {person}.", ("frost_watch", "send_message")),
    ("weekly price list", "Collect prices and send them to {place}.", ("price_list", "render_table", "send_message")),
    ("book a tour", "Find a free slot on {day} and confirm it.", ("tour_slots", "confirm_booking")),
)

_PEOPLE: Final = ("Maren", "Oskar", "Li Wen", "Tomasz", "Ngozi", "Étienne", "Ayşe", "Rourke")
_PLACES: Final = ("the weir", "Gallows Field", "the upper barn", "Quince Lane", "the old kiln", "Sankt Vit", "梨园")
_VARIETIES: Final = (
    "Brackenmoor Russet",
    "Grey Hen",
    "Lantern Pippin",
    "Sexton's Late",
    "Winter Dutchess",
    "Ølandsk Sild",
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_USERS: Final = ("maren", "oskar", "li-wen", None)
_MEMORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "agent-orchard": ("orchard-main", "orchard-harvest"),
    "agent-kitchen": ("kitchen-main",),
    "agent-visitors": ("barn-visits",),
}

#: Every way in which stores say that a record is pinned, and verified (SPEC §1, TRAPS 29).
_PINS: Final[tuple[Row, ...]] = (
    {"pinned": True},
    {"pinned": 1},
    {"pinned": "yes"},
    {"pinned": "ON"},
    {"metadata": {"pinned": "true"}},
    {"tags": ["harvest", "Pinned"]},
)
_VERIFICATIONS: Final[tuple[Row, ...]] = (
    {"verified": True, "importance": 1.0, "importance_source": "verified"},
    {"metadata": {"verified": "Yes"}},
    {"tags": ["verified"]},
)
#: Values that cannot be used, or only after a second look (SPEC §1.1, §1.2, TRAPS 11, 12, 42).
_ODDITIES: Final[tuple[Row, ...]] = (
    {"importance": math.nan},
    {"importance": math.inf},
    {"importance": 7},
    {"importance": -0.1},
    {"importance": True},
    {"importance": "0.7"},
    {"importance": "fairly"},
    {"importance": 0.3, "access_count": -1},
    {"importance": 0.3, "access_count": math.inf},
    {"importance": 0.3, "access_count": "12"},
    {"importance": 0.3, "access_count": 3.0},
    {"importance": 0.3, "last_accessed_at": "last Tuesday"},
    {"importance": 0.05, "timestamp": "some time in spring"},
)


#: What a suppression sets on a record (SPEC §8.1).
SUPPRESSED_FIELDS: Final = (
    "retention_state",
    "suppressed_by",
    "suppressed_at",
    "suppression_reason",
    "suppression_approver",
    "suppression_note",
    "suppressed_from",
)


@cache
def _word_vector(word: str) -> tuple[float, ...]:
    digest = hashlib.blake2b(word.encode(), digest_size=EMBEDDING_LENGTH).digest()
    return tuple(byte / 127.5 - 1.0 for byte in digest)


def embedding(text: str) -> list[float]:
    """A small deterministic vector of a text: texts that share words point the same way.

    Good enough to rank a sample by; no model stands behind it. Text without words gives the zero vector.
    """
    words = "".join(character if character.isalnum() else " " for character in text.casefold()).split()
    total = [math.fsum(parts) for parts in zip(*map(_word_vector, words), strict=True)] or [0.0] * EMBEDDING_LENGTH
    length = math.sqrt(math.fsum(part * part for part in total)) or 1.0
    return [round(part / length, 6) for part in total]


def sample_rows(
    *,
    now: int,
    seed: int = 7,
    conversations: int = 36,
    oddities: bool = True,
) -> dict[str, list[Row]]:
    """The rows of a sample store, by memory type, oldest conversations first.

    Args:
        now: the instant at which the year ends, in microseconds since the epoch.
        seed: another seed, another year.
        conversations: how many; everything else grows with it. 36 give about 400 records, 2 the least
            store that still holds every kind.
        oddities: also values that cannot be used, and naive times. Without them every store can hold
            every value.

    Returns:
        New rows each time; the key is ``_id``. ``agents``, ``semantic_cache`` and ``shared_memory`` included.
    """
    return _Year(random.Random(seed), now, oddities).build(conversations)


def write_sample_store(
    provider: Provider, *, now: int, seed: int = 7, conversations: int = 36, oddities: bool = True
) -> dict[str, int]:
    """Inserts a sample into an open store and says how many rows of each type it wrote.

    Arguments as for :func:`sample_rows`. Rows whose ids the store already has are left as they are, so
    writing the same sample twice is harmless and counts nothing. Numbers that are not finite are written as
    text: agents in Python write them bare into their files, fallow itself never does.

    Raises:
        StoreUnwritableError: the store refused a row.
    """
    written: dict[str, int] = {}
    rows_by_type = sample_rows(now=now, seed=seed, conversations=conversations, oddities=oddities)
    for memory_type, rows in rows_by_type.items():
        outcomes: list[Outcome] = []
        size = provider.capabilities.batch_size
        for start in range(0, len(rows), size):
            outcomes += provider.insert(memory_type, [_finite(row) for row in rows[start : start + size]])
        for outcome in outcomes:
            if outcome.status not in {"applied", "already"}:
                raise StoreUnwritableError(
                    f"the sample record {outcome.key.record_id} of {memory_type} was not written: "
                    f"{outcome.status} {outcome.detail}".rstrip(),
                    hint="use an empty store that may be written",
                )
        written[memory_type] = sum(outcome.status == "applied" for outcome in outcomes)
    return written


def _finite(row: Row) -> Row:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


class _Year:
    """One run of the generator: its dice, its clock and the rows so far."""

    def __init__(self, dice: random.Random, now: int, oddities: bool) -> None:
        self.dice = dice
        self.now = now
        self.oddities = oddities
        self.rows: dict[str, list[Row]] = {
            "agents": [],
            "conversation_memory": [],
            "knowledge_base": [],
            "entity_memory": [],
            "summaries": [],
            "workflow_memory": [],
            "semantic_cache": [],
            "shared_memory": [],
        }

    def build(self, conversations: int) -> dict[str, list[Row]]:
        self.agents()
        for index in range(conversations):
            days = 365.0 * (conversations - index - self.dice.random()) / max(conversations, 1)
            self.conversation(index, self.now - int(days * MICROSECONDS_PER_DAY))
        for index in range(max(4, conversations * 3 // 2)):
            self.knowledge(index)
        for index in range(max(3, conversations * 3 // 4)):
            self.entity(index)
        for index in range(max(3, conversations * 3 // 4)):
            self.workflow(index)
        self.kept_notes()
        self.suppressed_notes()
        if self.oddities:
            self.odd_notes()
        self.cache_entries()
        return self.rows

    # -- dice and words

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.dice.getrandbits(128), version=4))

    def phrase(self, template: str, words: Mapping[str, object] | None = None) -> str:
        return template.format(**(words or self.words()))

    def words(self) -> dict[str, object]:
        variety, other = self.dice.sample(_VARIETIES, 2)
        return {
            "person": self.dice.choice(_PEOPLE),
            "place": self.dice.choice(_PLACES),
            "variety": variety,
            "other": other,
            "day": self.dice.choice(_DAYS),
            "row": self.dice.randint(1, 48),
            "small": self.dice.randint(2, 9),
            "number": self.dice.randint(11, 180),
        }

    def days_ago(self, low: float, high: float) -> int:
        return self.now - int((low + (high - low) * self.dice.random()) * MICROSECONDS_PER_DAY)

    def written_time(self, instant: int) -> Any:
        """A creation time in one of the spellings that stores show; without oddities always aware ISO text."""
        instant -= instant % 1_000_000
        aware = from_microseconds(instant)
        roll = self.dice.random()
        if not self.oddities or roll < 0.78:
            return aware.isoformat()
        if roll < 0.88:
            return aware.replace(tzinfo=None).isoformat()
        if roll < 0.94:
            return aware.astimezone(timezone(timedelta(hours=2))).isoformat()
        return instant // 1_000_000 if roll < 0.97 else str(instant // 1_000)

    # -- rows

    def agents(self) -> None:
        policies: tuple[tuple[str, str, Row], ...] = (
            ("agent-orchard", "Looks after the trees, the water and the press.", {}),
            (
                "agent-kitchen",
                "Keeps recipes, jars and prices.",
                {
                    "scoring": {
                        "recency_decay_per_hour": 0.998,
                        "alpha_importance": "1.5",
                        "importance": {"mode": "heuristic", "purpose": "running a jam kitchen"},
                    },
                    "retention": {"min_retention": "0.2", "grace_days": 45},
                },
            ),
            ("agent-visitors", "Answers visitors and books tours.", {"retention": {"enabled": False}}),
        )
        for agent_id, instruction, policy in policies:
            created = from_microseconds(self.now - 380 * MICROSECONDS_PER_DAY).isoformat()
            self.rows["agents"].append(
                {
                    "_id": agent_id,
                    "agent_id": agent_id,
                    "name": agent_id.removeprefix("agent-").title(),
                    "instruction": instruction,
                    "application_mode": "assistant",
                    "memory_ids": list(_MEMORIES[agent_id]),
                    "semantic_cache": agent_id == "agent-visitors",
                    "retrieval_policy": {"conversation_scope": "memory", "knowledge_base_scope": "memory", **policy},
                    "created_at": created,
                    "updated_at": created,
                }
            )

    def message(
        self, agent_id: str, memory_id: str, thread_id: str, user_id: str | None, instant: int, message: _Message
    ) -> Row:
        kind, role, text = message
        row: Row = {
            "_id": self.uuid(),
            "role": role,
            "content": text,
            "timestamp": self.written_time(instant),
            "memory_id": memory_id,
            "thread_id": thread_id,
            "agent_id": agent_id,
            "user_id": user_id,
            "associated_thread_ids": None,
            "embedding": embedding(text) if self.chance(0.7) else None,
        }
        if self.oddities and self.chance(0.02):
            row["conversation_id"] = row.pop("thread_id")
        self.rate(row, _WORTH[kind], instant)
        self.recall(row, _WORTH[kind], instant)
        self.rows["conversation_memory"].append(row)
        return row

    def rate(self, row: Row, worth: float, instant: int, share: float = 0.55) -> None:
        """Some rows carry a rating: half of them the heuristic's, a few a model's or the host's."""
        if not self.chance(share):
            return
        source = self.dice.choice(("heuristic", "heuristic", "llm", "host"))
        row["importance"] = round(min(1.0, max(0.0, worth + (self.dice.random() - 0.5) * 0.2)), 2)
        row["importance_source"] = source
        if source == "llm":
            row["importance"] = max(1, round(row["importance"] * 10)) / 10
            row["importance_model"] = "sample-model"
            row["importance_rated_at"] = iso(instant + _MINUTE)

    def recall(self, row: Row, worth: float, instant: int) -> None:
        """What is worth more is recalled more often, and more recently."""
        if not self.chance(0.12 + 0.4 * worth):
            return
        row["access_count"] = 1 + int(self.dice.random() ** 3 * 14)
        since = self.dice.random() * max(0, self.now - instant)
        row["last_accessed_at"] = iso(int(self.now - since) // 1000 * 1000)

    def conversation(self, index: int, start: int) -> None:
        agent_id = self.dice.choice(
            ("agent-orchard", "agent-orchard", "agent-orchard", "agent-kitchen", "agent-visitors")
        )
        memory_id = self.dice.choice(_MEMORIES[agent_id])
        user_id = self.dice.choice(_USERS)
        thread_id = f"thread-{index:03d}"
        words = self.words()
        rows: list[Row] = []
        instant = start
        last = start
        for _ in range(self.dice.choice((1, 1, 2))):
            for kind, role, text in self.dice.choice(_EPISODES[agent_id]):
                instant += int((0.3 + 2 * self.dice.random()) * _MINUTE)
                if instant >= self.now - _MINUTE:
                    break
                last = instant
                rows.append(
                    self.message(
                        agent_id, memory_id, thread_id, user_id, instant, (kind, role, self.phrase(text, words))
                    )
                )
            instant += _HOUR
            words = self.words()
        if index % 5 in {0, 3} and self.now - last > 10 * MICROSECONDS_PER_DAY:
            self.summary(rows[: max(2, len(rows) * 2 // 3)], start, last)

    def summary(self, covered: Sequence[Row], start: int, end: int) -> Row:
        first = covered[0]
        earlier = self.rows["summaries"]
        compaction = len(earlier) % 4 == 3
        row: Row = {
            "_id": self.uuid(),
            "content": "In short: " + " ".join(row["content"] for row in covered if row["role"] != "tool")[:400],
            "memory_id": first["memory_id"],
            "agent_id": first["agent_id"],
            "user_id": first["user_id"],
            "thread_id": first.get("thread_id", first.get("conversation_id")),
            "period_start": start / 1_000_000,
            "period_end": end / 1_000_000,
            "created_at": (end + _HOUR) / 1_000_000,
            "memory_units_count": len(covered),
            "source_message_ids": [row["_id"] for row in covered],
            "summary_type": "compaction" if compaction else "automatic",
        }
        row["embedding"] = embedding(row["content"])
        if compaction:
            row["supersedes"] = earlier[-1]["_id"]
        self.rate(row, 0.6, end)
        for message in covered:
            message["summary_id"] = row["_id"]
        earlier.append(row)
        return row

    def knowledge(self, index: int) -> None:
        namespace, template = _KNOWLEDGE[index % len(_KNOWLEDGE)]
        text = self.phrase(template)
        instant = self.days_ago(5, 370)
        agent_id = self.dice.choice(("agent-orchard", "agent-kitchen", None, None))
        memory_id = self.dice.choice(_MEMORIES[agent_id]) if agent_id else self.dice.choice(("orchard-main", None))
        row: Row = {
            "_id": f"kb.{namespace}.{index}" if index % 4 else self.uuid(),
            "content": text,
            "namespace": namespace,
            "knowledge_base_id": f"kb-{namespace}",
            "chunk_index": index // len(_KNOWLEDGE),
            "chunk_count": 1 + index // len(_KNOWLEDGE),
            "user_id": None,
            "created_at": self.written_time(instant),
            "updated_at": iso(instant),
            "embedding": embedding(text),
            "source_path": f"handbook/{namespace}.md",
            "metadata": {"source": "handbook", "season": self.dice.choice(("spring", "summer", "autumn"))},
        }
        if agent_id:
            row["agent_id"] = agent_id
        if memory_id:
            row["memory_id"] = memory_id
        if index % 9 == 5:
            row["source_id"] = self.rows["knowledge_base"][-1]["_id"]
        if index % 11 == 3:
            row["metadata"]["importance"] = 0.2
        else:
            self.rate(row, 0.4, instant, share=0.5)
        self.recall(row, 0.5, instant)
        self.rows["knowledge_base"].append(row)

    def entity(self, index: int) -> None:
        kind, name = self.dice.choice(
            (("person", _PEOPLE[index % len(_PEOPLE)]), ("place", _PLACES[index % len(_PLACES)]))
        )
        if index % 3 == 0:
            kind, name = "variety", _VARIETIES[index // 3 % len(_VARIETIES)]
        instant = self.days_ago(3, 330)
        words = self.words()
        facts = {
            "person": ("likes", "tours in the barn", "works_at", "{place}"),
            "place": ("lies_by", "row {row}", "trees", "{number}"),
            "variety": ("ripens", "week {number}", "keeps", "{small} weeks"),
        }[kind]
        attributes: list[Row] = [
            {
                "name": facts[at],
                "value": self.phrase(facts[at + 1], words),
                "confidence": round(0.5 + self.dice.random() / 2, 2),
                "source": "conversation",
                "thread_id": f"thread-{index:03d}",
            }
            for at in (0, 2)
        ]
        if index == 2:
            attributes[0]["pinned"] = True
        row: Row = {
            "_id": self.uuid(),
            "entity_id": f"entity-{index}",
            "name": name,
            "entity_type": kind,
            "attributes": attributes,
            "relations": [{"type": "mentioned_with", "target": self.dice.choice(_PEOPLE)}] if index % 2 else [],
            "metadata": {},
            "memory_id": self.dice.choice(("orchard-main", "orchard-main", "kitchen-main")),
            "user_id": self.dice.choice(_USERS),
            "created_at": iso(instant),
            "updated_at": iso(instant),
        }
        self.rate(row, 0.35, instant, share=0.4)
        self.recall(row, 0.5, instant)
        self.rows["entity_memory"].append(row)

    def workflow(self, index: int) -> None:
        name, description, tools = _WORKFLOWS[index % len(_WORKFLOWS)]
        words = self.words()
        instant = self.days_ago(2, 360)
        agent_id = self.dice.choice(("agent-orchard", "agent-orchard", "agent-kitchen", "agent-visitors"))
        steps = {
            str(number): {"name": tool, "arguments": {"place": words["place"]}, "result": str(words["number"])}
            for number, tool in enumerate(tools, start=1)
        }
        row: Row = {
            "_id": self.uuid(),
            "workflow_id": self.uuid(),
            "name": self.phrase(name, words),
            "description": self.phrase(description, words),
            "steps": steps,
            "step_count": len(steps),
            "outcome": self.dice.choice(("success", "success", "success", "failure")),
            "user_query": self.phrase("Could you {name}, please?", {"name": self.phrase(name, words)}),
            "canonical_hash": hashlib.sha256(" ".join(tools).encode()).hexdigest(),
            "canonical_signature": [{"tool": tool, "arg_keys": ["place"], "errored": False} for tool in tools],
            "created_at": self.written_time(instant),
            "updated_at": iso(instant),
            "agent_id": agent_id,
            "memory_id": self.dice.choice(_MEMORIES[agent_id]),
            "user_id": self.dice.choice(_USERS),
            "origin_thread_id": f"thread-{index:03d}",
        }
        row["embedding"] = embedding(row["description"]) if index % 3 else None
        self.rate(row, 0.25 if row["outcome"] == "failure" else 0.5, instant, share=0.6)
        self.recall(row, 0.4, instant)
        self.rows["workflow_memory"].append(row)

    # -- rows that show a rule

    def note(self, text: str, days: float, thread_id: str | None = "thread-notes", **fields: Any) -> Row:
        """One old, hardly valued, never recalled note: eligible, but for what ``fields`` say."""
        instant = self.now - int(days * MICROSECONDS_PER_DAY)
        row: Row = {
            "_id": self.uuid(),
            "role": "user",
            "content": text,
            "timestamp": from_microseconds(instant - instant % 1_000_000).isoformat(),
            "memory_id": "orchard-main",
            "thread_id": thread_id,
            "agent_id": "agent-orchard",
            "user_id": "maren",
            "associated_thread_ids": None,
            "embedding": None,
            "importance": 0.05,
            "importance_source": "heuristic",
        }
        row |= copy.deepcopy(fields)
        self.rows["conversation_memory"].append(row)
        return row

    def kept_notes(self) -> None:
        for number, flag in enumerate(_PINS):
            self.note(f"Gate code of barn {number + 1} hangs behind the ladder.", 200 + number, **flag)
        for number, flag in enumerate(_VERIFICATIONS):
            self.note(f"The weir keeper's number ends in {number + 40}.", 220 + number, **flag)
        for number in range(2):
            self.note(
                f"Between us: the buyer from Sankt Vit offered {number + 3} percent more.",
                150 + number,
                thread_id="thread-private",
                retention_state="sealed",
            )
        successor = self.note("The spring crew starts at seven.", 90, _id="note.crew.2")
        successor["supersedes"] = self.note("The spring crew starts at eight.", 120, _id="note.crew.1")["_id"]
        itself = self.note("Echo of an echo.", 130, _id="note echo ä")
        itself["parent_id"] = itself["_id"]

    def suppressed_notes(self) -> None:
        """What an earlier plan hid, what it hid and a person took back, and the journal of both."""
        plan_id = f"forget-plan-{self.dice.getrandbits(112):028x}"
        suppressed_at = self.now - 40 * MICROSECONDS_PER_DAY - 3 * _HOUR
        audit: Row = {
            "suppressed_by": plan_id,
            "suppressed_at": iso(suppressed_at - suppressed_at % 1000),
            "suppression_reason": "retention 0.02 below 0.15 (importance 0.05, recalls 0)",
            "suppression_approver": "maren",
            "suppression_note": "small talk of last winter",
            "suppressed_from": "active",
        }
        hidden = [
            self.note(f"Lovely weather on terrace {number}.", 300 + number, retention_state="suppressed", **audit)
            for number in range(4)
        ]
        cited_by_hidden = self.note("The kettle whistles again.", 310)
        summary = self.summary([cited_by_hidden, hidden[0]], self.now - 311 * MICROSECONDS_PER_DAY, suppressed_at)
        summary |= {"importance": 0.05, "importance_source": "heuristic", "retention_state": "Suppressed", **audit}
        summary["created_at"] = (self.now - 299 * MICROSECONDS_PER_DAY) / 1_000_000
        restored_at = self.now - 6 * MICROSECONDS_PER_DAY
        restored = self.note(
            "The spare key is under the third hive.",
            305,
            retention_state="active",
            **audit,
            unsuppressed_by="oskar",
            unsuppressed_at=iso(restored_at - restored_at % 1000),
            unsuppression_note="still needed",
        )
        for memory_type, rows in (("conversation_memory", [*hidden, restored]), ("summaries", [summary])):
            for row in rows:
                self.journal(memory_type, row, plan_id, suppressed_at)
        self.rows["shared_memory"].append(
            control_event(
                "memory_forgotten",
                forgotten_key(plan_id),
                {
                    "plan_id": plan_id,
                    "plan_kind": "retention",
                    "dry_run": False,
                    "candidate_count": len(hidden) + 2,
                    "candidates": [],
                    "tombstoned": len(hidden) + 2,
                    "deleted": 0,
                    "retained": 0,
                    "errors": [],
                    "ok": True,
                },
                now=suppressed_at,
                agent_id="agent-orchard",
            )
        )

    def odd_notes(self) -> None:
        for number, fields in enumerate(_ODDITIES):
            self.note(f"Leftover of import {number}.", 180 + number, **{"importance_source": None, **fields})
        self.note("From a clock that runs ahead.", 170, last_accessed_at=iso(self.now + 10 * MICROSECONDS_PER_DAY))
        self.note("Written in the year of the comet.", -3652)
        self.note("Nobody knows whose note this is.", 190, agent_id=None, memory_id=None, user_id=None, thread_id=None)
        self.note("Found in the orchard's drawer.", 191, agent_id=None, user_id=None)
        naive = self.note("Kiln lit before dawn.", 160)
        naive["timestamp"] = naive["timestamp"].removesuffix("+00:00")

    def cache_entries(self) -> None:
        for number, (query, hours, lifetime) in enumerate(
            (
                ("When do you open?", 30, None),
                ("when do you open", 3, None),
                ("Are dogs allowed?", 30, 48),
                ("Parking?", 1, 24),
            )
        ):
            created = self.now - hours * _HOUR
            self.rows["semantic_cache"].append(
                {
                    "_id": self.uuid(),
                    "cache_key": f"key-{number}",
                    "query": query,
                    "query_text": query,
                    "response": "See the board by the gate.",
                    "scope": "local",
                    "agent_id": "agent-visitors",
                    "memory_id": "barn-visits",
                    "user_id": None,
                    "hit_count": number,
                    "usage_count": number,
                    "timestamp": created / 1_000_000,
                    "expires_at": None if lifetime is None else (created + lifetime * _HOUR) / 1_000_000,
                }
            )

    def journal(self, memory_type: str, row: Row, plan_id: str, now: int) -> None:
        """The journal entry of the suppression, and the head that points to it (SPEC §10)."""
        taken_back = ("unsuppressed_by", "unsuppressed_at", "unsuppression_note")
        after = {name: value for name, value in row.items() if name not in taken_back} | {
            "retention_state": "suppressed"
        }
        before = {name: value for name, value in after.items() if name not in SUPPRESSED_FIELDS}
        record = read_record(after, memory_type, row["_id"])
        entry = change_id("suppress", plan_id, RecordKey(memory_type, row["_id"]))
        self.rows["shared_memory"] += [
            change_row(
                entry,
                record,
                actor="maren",
                source=f"forgetting:{plan_id}",
                before=before,
                after=after,
                changed=SUPPRESSED_FIELDS,
                now=now,
            ),
            head_row(record, head_id(RecordKey(memory_type, row["_id"])), entry, after, now=now),
        ]
