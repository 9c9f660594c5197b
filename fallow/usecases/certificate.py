"""The certificate of disposition: what became of every record of a plan, by whom, when and why (SPEC §8, §10).

One file, complete in itself: the plan as it was shown, the decision with its signature, what happened to
each record with the ids and hashes of its journal entries, a Merkle root over those rows, and a hash over
the whole. :func:`verify` needs nothing else. What it proves without a seal is that the file is whole and
agrees with itself, down to a byte; who made it, only a seal by an operator's key says.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fallow.acting.signatures import Operator, read_token, seal, verify_seal, verify_signature
from fallow.model.arguments import Time, instant
from fallow.model.canonical import canonical_json, sha256
from fallow.model.errors import FallowError, PlanNotFoundError, PlanStateError, SignatureRefusedError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import read_record
from fallow.model.times import iso, parse_time
from fallow.plans.agents import agents_plans
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import load_plan, stored_plan
from fallow.port.journal import SHARED, change_id, content_of
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import chunks, fetch_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


KIND: Final = "fallow certificate of disposition"
_FIELDS: Final = frozenset(
    {
        "schema_version",
        "kind",
        "plan_id",
        "store",
        "issued_at",
        "state",
        "plan",
        "requesters",
        "decision",
        "outcome",
        "rows",
        "totals",
        "merkle_root",
        "certificate_sha256",
        "seal",
    }
)
#: Keys that a plan's document has beside it where a command printed it; its hashes do not cover them.
_BESIDE: Final = frozenset({"state", "decision", "outcome", "publication"})


def certificate_text(certificate: Mapping[str, Any]) -> str:
    """The one text of a certificate: one line of JSON, and a line end."""
    return json.dumps(certificate, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"


def leaf(row: Mapping[str, Any]) -> str:
    """The hash of one row, 64 hex digits."""
    return hashlib.sha256(b"\0" + canonical_json(row).encode()).hexdigest()


def merkle_root(rows: Sequence[Mapping[str, Any]]) -> str:
    """The root over rows in their order (as RFC 6962 builds it, an odd one is carried up); of none: the empty hash."""
    level = [bytes.fromhex(leaf(row)) for row in rows]
    if not level:
        return hashlib.sha256(b"").hexdigest()
    while len(level) > 1:
        pairs = [level[n : n + 2] for n in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\1" + b"".join(pair)).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0].hex()


def certify(
    provider: Provider, plan_id: str, *, now: Time | None = None, key: Ed25519PrivateKey | None = None
) -> dict[str, Any]:
    """The certificate of a decided plan, from the store as it stands. Reads only.

    Args:
        now: the wall clock, a time of SPEC §1.5, for issued_at.
        key: seals the certificate; None leaves it without.

    Raises:
        PlanStateError: nobody has decided about the plan.
        PlanNotFoundError, PlanAlteredError: as :func:`fallow.plans.storage.load_plan`.
    """
    now = instant(now)
    try:
        plan = load_plan(provider, plan_id)
    except PlanNotFoundError:
        theirs = agents_plans(provider).get(plan_id.strip())
        if theirs is None:
            raise
        raise PlanStateError(
            f"{theirs.plan_id} was applied by MemoRizz, approved by {theirs.approved_by or 'nobody named'}",
            hint="fallow has neither its document nor its decision; fallow show lists its records",
        ) from None
    stored = stored_plan(provider, plan.plan_id, now)
    decision = stored.decision
    if decision is None:
        raise PlanStateError(f"nobody has decided about {plan.plan_id}", hint="there is nothing to certify yet")
    rows: list[dict[str, Any]] = []
    left_out = set(decision.leave_out)
    for chunk in chunks([entry.key for entry in plan.entries], provider.capabilities.batch_size):
        rows += _rows(provider, plan, chunk, left_out)
    certificate: dict[str, Any] = {
        "schema_version": 1,
        "kind": KIND,
        "plan_id": plan.plan_id,
        "store": _store(provider, plan),
        "issued_at": iso(now),
        "state": stored.state,
        "plan": dict(plan.document),
        "requesters": list(stored.requesters),
        "decision": decision.to_json(),
        "outcome": None if stored.ended is None else dict(stored.ended),
        "rows": rows,
        "totals": dict(sorted(Counter(str(row["outcome"]) for row in rows).items())),
        "merkle_root": merkle_root(rows),
    }
    # As it reads back from its text, so that a hash now is a hash then.
    certificate = json.loads(certificate_text(certificate))
    certificate["certificate_sha256"] = _digest(certificate)
    certificate["seal"] = None if key is None else seal(certificate["certificate_sha256"], key)
    return certificate


def _store(provider: Provider, plan: RetentionPlan) -> dict[str, Any]:
    """The store that the plan was made on; where it was moved since, also the one that was read (SPEC §7.3)."""
    here = provider.identity()
    store = {"kind": provider.capabilities.kind, "identity": plan.store_identity}
    return store if here == plan.store_identity else {**store, "read_on": here}


def _digest(certificate: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in certificate.items() if name not in {"certificate_sha256", "seal"}}
    return sha256(certificate_text(kept))


def _rows(
    provider: Provider, plan: RetentionPlan, keys: Sequence[RecordKey], left_out: set[RecordKey]
) -> list[dict[str, Any]]:
    records = fetch_keys(provider, keys)
    written = {key: change_id("suppress", plan.plan_id, key) for key in keys}
    undone = {
        key: change_id("restore", f"{row.get('suppressed_by')}\0{row.get('suppressed_at')}", key)
        for key, row in records.items()
        if isinstance(row, dict) and row.get("suppressed_by") == plan.plan_id
    }
    journal = provider.fetch(SHARED, [*written.values(), *undone.values()])
    entries = {entry.key: entry for entry in plan.entries}
    rows: list[dict[str, Any]] = []
    for key in keys:
        suppression = _entry(journal.get(written[key]))
        restoration = _entry(journal.get(undone[key])) if key in undone else None
        rows.append(
            {
                "memory_type": key.memory_type,
                "record_id": key.record_id,
                "fingerprint": entries[key].fingerprint,
                "reason": entries[key].reason,
                "outcome": _outcome(plan, key, records.get(key), key in left_out, suppression, restoration),
                "suppressed": suppression,
                "restored": restoration,
            }
        )
    return rows


def _entry(row: Row | Unreadable | None) -> dict[str, Any] | None:
    """What a journal entry says, without what its record says elsewhere."""
    if row is None or isinstance(row, Unreadable):
        return None
    content = content_of(row)
    names = ("actor", "created_at", "before_hash", "after_hash")
    return {"journal_id": str(row.get("_id") or row.get("id")), **{name: content.get(name) for name in names}}


def _outcome(
    plan: RetentionPlan,
    key: RecordKey,
    row: Row | Unreadable | None,
    left_out: bool,
    suppression: Mapping[str, Any] | None,
    restoration: Mapping[str, Any] | None,
) -> str:
    if left_out:
        return "left out"
    if row is None:
        return "suppressed, gone since" if suppression else "gone"
    if isinstance(row, Unreadable):
        return "suppressed, unreadable since" if suppression else "unreadable"
    record = read_record(row, *key)
    if record.suppressed_by != plan.plan_id:
        return "suppressed, changed since" if suppression else "not suppressed by this plan"
    if record.retention_state == "suppressed":
        return "suppressed" if suppression else "suppressed, not in the journal"
    return "restored" if restoration else "unsuppressed, not in the journal"


@dataclass(slots=True)
class Verification:
    """What a file proved: ``problems`` empty means that it is whole and agrees with itself.

    ``notes`` say what was not, or could not be, verified.
    """

    kind: str = "unknown"
    plan_id: str | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "ok": self.ok,
            "kind": self.kind,
            "plan_id": self.plan_id,
            "problems": self.problems,
            "notes": self.notes,
        }


def verify(data: bytes, operators: Sequence[Operator] = ()) -> Verification:
    """Checks a certificate, or a plan's document as ``retention-plan --json`` prints it, from the file alone.

    Args:
        data: the file, every byte of it.
        operators: who is registered, to say whose signatures are in it; none: they are only held
            against the rest of the file.
    """
    found = Verification()
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse)
        if not isinstance(document, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        found.problems.append("the file is not one JSON document")
        return found
    name = document.get("plan_id")
    found.plan_id = name if isinstance(name, str) else None
    try:
        if document.get("kind") == KIND:
            found.kind = "certificate"
            _verify_certificate(document, data, operators, found)
        else:
            found.kind = "plan"
            _verify_plan(document, data, found)
    except FallowError as error:
        found.problems.append(error.message)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        found.problems.append(f"the file is not of the form it should have: {type(error).__name__}")
    return found


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _verify_plan(document: dict[str, Any], data: bytes, found: Verification) -> None:
    if json.dumps(document, ensure_ascii=False, allow_nan=False).encode() + b"\n" != data:
        found.problems.append("the file is not byte for byte as it was printed")
    beside = sorted(_BESIDE & document.keys())
    if beside:
        found.notes.append(f"not covered by the plan's hashes: {', '.join(beside)}")
    RetentionPlan.from_document({name: value for name, value in document.items() if name not in _BESIDE})


def _verify_certificate(
    certificate: dict[str, Any], data: bytes, operators: Sequence[Operator], found: Verification
) -> None:
    if certificate_text(certificate).encode() != data:
        found.problems.append("the file is not byte for byte as it was written")
    if certificate.keys() != _FIELDS:
        found.problems.append("the certificate has other fields than a certificate has")
    if _digest(certificate) != certificate["certificate_sha256"]:
        found.problems.append("the certificate does not match its hash: it was altered")
    plan = RetentionPlan.from_document(certificate["plan"])
    decision, rows = certificate["decision"], certificate["rows"]
    if not plan.plan_id == certificate["plan_id"] == decision["plan_id"]:
        found.problems.append("plan, decision and certificate are about different plans")
    if decision["document_sha256"] != plan.document_sha256:
        found.problems.append("the decision is about another document")
    if plan.store_identity != certificate["store"]["identity"]:
        found.problems.append("the plan is of another store")
    shown = [(entry.memory_type, entry.record_id, entry.fingerprint) for entry in plan.entries]
    if [(row["memory_type"], row["record_id"], row["fingerprint"]) for row in rows] != shown:
        found.problems.append("the rows are not the records of the plan")
    if merkle_root(rows) != certificate["merkle_root"]:
        found.problems.append("the rows do not match their Merkle root")
    if dict(Counter(row["outcome"] for row in rows)) != certificate["totals"]:
        found.problems.append("the totals are not those of the rows")
    left_out = {(row["memory_type"], row["record_id"]) for row in rows if row["outcome"] == "left out"}
    if {tuple(pair) for pair in decision["leave_out"]} != left_out:
        found.problems.append("the rows left out are not those that the decision names")
    _verify_decision(decision, operators, found)
    if certificate["seal"] is None:
        found.notes.append("not sealed: the file is whole, and anybody could have made it")
    else:
        found.notes.append(verify_seal(certificate["certificate_sha256"], certificate["seal"], operators))


def _verify_decision(decision: Mapping[str, Any], operators: Sequence[Operator], found: Verification) -> None:
    token = decision.get("signature")
    if token is None:
        if decision["standing"] == "signed":
            found.problems.append("the decision says that it was signed, and has no signature")
        found.notes.append(f"the decision is {decision['standing']}: a name, and no proof of who gave it")
        return
    statement = read_token(token)[0]
    said = {
        "plan_id": decision["plan_id"],
        "document_sha256": decision["document_sha256"],
        "decision": decision["decision"],
        "by": decision["by"],
        "reason": decision["reason"],
        "count": decision["count"],
        "leave_out": tuple((kind, name) for kind, name in decision["leave_out"]),
    }
    wrong = [name for name, value in said.items() if getattr(statement, name) != value]
    if wrong:
        found.problems.append(f"the signature is about another {', '.join(wrong)}")
    decided_at = parse_time(decision["decided_at"])
    if not operators:
        found.notes.append(f"signed with key {statement.key_id}: not verified, no operators were named")
        return
    try:
        _, operator = verify_signature(token, operators, at=0 if decided_at is None else decided_at)
    except SignatureRefusedError as error:
        if error.reason == "revoked":
            found.notes.append(f"the decision is signed, and {error.message}")
        else:
            found.problems.append(f"the decision's signature does not hold: {error.message}")
    else:
        found.notes.append(f"the decision is signed by {operator.name}, key {operator.key_id}")


#: What a spreadsheet would take for a formula at the start of a cell.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def certificate_csv(certificate: Mapping[str, Any]) -> str:
    """The rows as CSV, one a record, each with its own leaf of the Merkle root; no cell is a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    decision = certificate["decision"]
    head = ("plan_id", "memory_type", "record_id", "outcome", "reason", "suppressed_at", "restored_at")
    writer.writerow([*head, "decided_by", "standing", "decided_at", "fingerprint", "leaf", "merkle_root"])
    for row in certificate["rows"]:
        suppressed, restored = row["suppressed"] or {}, row["restored"] or {}
        cells = [
            certificate["plan_id"],
            row["memory_type"],
            row["record_id"],
            row["outcome"],
            row["reason"],
            suppressed.get("created_at") or "",
            restored.get("created_at") or "",
            decision["by"],
            decision["standing"],
            decision["decided_at"],
            row["fingerprint"],
            leaf(row),
            certificate["merkle_root"],
        ]
        writer.writerow(["'" + cell if str(cell).startswith(_FORMULA) else cell for cell in cells])
    return out.getvalue()
