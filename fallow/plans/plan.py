"""The plan: an immutable document with two hashes (SPEC §6.5-6.9).

``plan_id`` names what was decided: the scope, the policy, the instant and the entries. The same records,
as_of and settings give the same id on every provider, host and time zone. ``document_sha256`` covers
the whole document, with everything that stands outside the id: store, origins, counts, who asked, when.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from fallow.model.canonical import canonical_json, sha256
from fallow.model.errors import PlanAlteredError, PlanStateError
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope
from fallow.model.times import FUTURE_TOLERANCE, parse_time

SCHEMA_VERSION: Final = 1
PLAN_ID_PREFIX: Final = "forget-plan-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One record that the plan would suppress, and what that rests on (SPEC §6.6).

    ``retention`` and its three parts are in 0..1, 9 decimals; ``basis`` holds the parts of the fingerprint
    so that a later difference can be named.
    """

    record_id: str
    memory_type: str
    agent_id: str | None
    memory_id: str | None
    user_id: str | None
    thread_id: str | None
    retention: float
    importance: float
    usage: float
    recency: float
    age_days: float
    access_count: int
    reason: str
    fingerprint: str
    basis: Mapping[str, Any]

    @property
    def key(self) -> RecordKey:
        """What names the record in its store."""
        return RecordKey(self.memory_type, self.record_id)


def plan_id_of(document: Mapping[str, Any]) -> str:
    """The id that a document's decision part must have (SPEC §6.7)."""
    policy = {name: item["value"] for name, item in document["policy"].items()}
    decided = {
        "schema_version": document["schema_version"],
        "as_of": document["as_of"],
        "scope": document["scope"],
        "policy": policy,
        "entries": document["entries"],
    }
    return PLAN_ID_PREFIX + sha256(canonical_json(_numbers_as_floats(decided)))[:28]


def _numbers_as_floats(value: Any) -> Any:
    """Settings may come as 30 or 30.0; both are the same decision."""
    if isinstance(value, Mapping):
        return {key: _numbers_as_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_as_floats(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def document_sha256_of(document: Mapping[str, Any]) -> str:
    """The hash over the whole document but for the hash itself."""
    return sha256(canonical_json({key: value for key, value in document.items() if key != "document_sha256"}))


def text_sha256_of(document: Mapping[str, Any]) -> str:
    """The hash over a document with every digit of its numbers, where the plan's own form keeps nine decimals."""
    kept = {key: value for key, value in document.items() if key not in {"document_sha256", "text_sha256"}}
    return sha256(json.dumps(kept, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False))


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """A plan as it was shown; ``document`` is SPEC §6.9's JSON and is never changed."""

    document: Mapping[str, Any]
    entries: tuple[PlanEntry, ...]

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """A stored document as a plan, after both hashes were checked.

        Raises:
            PlanAlteredError: the document is not what was planned, down to a byte.
        """
        try:
            names = [item.name for item in fields(PlanEntry)]
            entries = tuple(PlanEntry(**{name: entry[name] for name in names}) for entry in document["entries"])
            plan_id, digest = plan_id_of(document), document_sha256_of(document)
            stated = (document["plan_id"], document["document_sha256"])
            exact = text_sha256_of(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanAlteredError(
                f"a stored plan is not a plan document: {type(error).__name__}",
                hint="plan again; this one cannot be used",
            ) from None
        # Plans from before this hash have none; taking it away changes the document's own.
        if stated != (plan_id, digest) or document.get("text_sha256", exact) != exact:
            raise PlanAlteredError(
                f"the stored document of {str(stated[0])[:60]} does not match its hashes",
                hint="it was altered after planning; plan again",
            )
        return cls(document, entries)

    @classmethod
    def seal(cls, document: dict[str, Any], entries: tuple[PlanEntry, ...]) -> Self:
        """Completes a document with its entries and both hashes."""
        names = [item.name for item in fields(PlanEntry)]
        rows = [{name: getattr(entry, name) for name in names} for entry in entries]
        document["entries"] = [{**row, "basis": dict(row["basis"])} for row in rows]
        document["plan_id"] = plan_id_of(document)
        document["text_sha256"] = text_sha256_of(document)
        document["document_sha256"] = document_sha256_of(document)
        return cls(document, entries)

    def seen_again(self, stored: Self) -> Self:
        """This plan beside the one of its id that was stored before: who asked and when stay, the numbers are today's.

        Where nothing else has changed it is the stored one, down to the byte.
        """
        first = {name: stored.document[name] for name in ("requested_by", "planned_at", "expires_at")}
        again = self.seal({**self.document, **first}, self.entries)
        return stored if again.document_sha256 == stored.document_sha256 else again

    def check_time(self, now: int) -> None:
        """Nothing is decided about a what-if before its time (SPEC §6.7).

        Raises:
            PlanStateError: the plan's as_of lies more than five minutes ahead of ``now``.
        """
        if self.as_of > now + FUTURE_TOLERANCE:
            raise PlanStateError(
                f"{self.plan_id} is a what-if: it is not published, approved or applied before its time, "
                f"{self.document['as_of']}",
                hint="plan again as of now; nothing was written",
            )

    @property
    def plan_id(self) -> str:
        """``forget-plan-`` and 28 hex digits."""
        return str(self.document["plan_id"])

    @property
    def document_sha256(self) -> str:
        """The hash over the whole document."""
        return str(self.document["document_sha256"])

    @property
    def scope(self) -> Scope:
        """What the plan is about."""
        return Scope.from_json(self.document["scope"])

    @property
    def as_of(self) -> int:
        """The instant of the decision, microseconds since the epoch."""
        return _instant(self.document["as_of"])

    @property
    def planned_at(self) -> int:
        """When it was made, by the wall clock."""
        return _instant(self.document["planned_at"])

    @property
    def expires_at(self) -> int:
        """When it stops waiting, by the wall clock, unless it was published or reopened later."""
        return _instant(self.document["expires_at"])

    @property
    def store_identity(self) -> str:
        """Which store it was made on."""
        return str(self.document["store"]["identity"])

    @property
    def counts(self) -> Mapping[str, Any]:
        """Scanned, eligible, planned, deferred, protected by reason, breaches by name."""
        counts: Mapping[str, Any] = self.document["counts"]
        return counts

    @property
    def wide(self) -> bool:
        """Whether it would hide more of its scope than the blast radius allows unasked (SPEC §6.8)."""
        return bool(self.document["blast_radius"]["exceeded"])

    def policy(self, name: str, default: Any = None) -> Any:
        """A value of the policy that the plan was made with; ``default`` for one that is younger than the plan."""
        return self.document["policy"].get(name, {"value": default})["value"]

    @property
    def item_set(self) -> str:
        """A digest of the set of (type, id): two plans with equal sets ask the same question (SPEC §7.1)."""
        return sha256(canonical_json(sorted([entry.memory_type, entry.record_id] for entry in self.entries)))


def _instant(text: str) -> int:
    instant = parse_time(text)
    if instant is None:
        raise PlanAlteredError("a stored plan has a time that cannot be read", hint="plan again")
    return instant
