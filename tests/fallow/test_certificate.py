"""The certificate of disposition, and verifying it from the file alone: no byte can be changed (SPEC §8, §10)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide, sign_decision
from fallow.acting.restore import restore_records
from fallow.acting.signatures import add_operator, make_key, operators_text, public_text, revoke_operator
from fallow.model.errors import FallowError, PlanStateError
from fallow.model.settings import ApprovalConfig
from fallow.model.times import MICROSECONDS_PER_HOUR
from fallow.plans.storage import load_plan, stored_plan
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider
from fallow.usecases.certificate import certificate_csv, certificate_text, certify, leaf, merkle_root, verify
from tests.fallow.small_stores import CONVERSATION, NOW, key, planned, record, store, tree

HOUR = MICROSECONDS_PER_HOUR
ADA, EVE = make_key(), make_key()
OPERATORS = add_operator((), "Ada", public_text(ADA), now=NOW)


def lived(provider: Provider, root: Path, *, signed: bool = True) -> str:
    """A plan of eight records with every outcome there is; its id."""
    plan = planned(provider)
    approval = ApprovalConfig(operators=operators_text(OPERATORS))
    asked: dict[str, Any] = {"verdict": "approved", "approved_by": "Ada", "reason": "spring", "leave_out": ["r1"]}
    token = sign_decision(provider, plan.plan_id, **asked, key=ADA, now=NOW) if signed else None
    decide(provider, plan.plan_id, **asked, count=8, approval=approval, now=NOW, signature=token)
    (root / CONVERSATION / "r2.json").unlink()
    edited = root / CONVERSATION / "r3.json"
    edited.write_text(json.dumps({**json.loads(edited.read_text()), "access_count": 9}))
    apply_plan(provider, plan.plan_id, now=NOW + HOUR, approval=approval)
    restore_records(provider, [key("r4")], approved_by="Ada", reason="needed", now=NOW + 2 * HOUR)
    (root / CONVERSATION / "r5.json").unlink()
    behind = root / CONVERSATION / "r6.json"
    behind.write_text(json.dumps({**json.loads(behind.read_text()), "retention_state": "active"}))
    return plan.plan_id


def made(root: Path, **options: Any) -> dict[str, Any]:
    with store(root, *(record(f"r{n}", days=90 + n) for n in range(8))) as provider:
        plan_id = lived(provider, root, signed=options.pop("signed", True))
        before = tree(root)
        certificate = certify(provider, plan_id, now=NOW + 3 * HOUR, **options)
        assert tree(root) == before
    return certificate


def test_a_certificate_says_what_became_of_every_record_10(tmp_path: Path) -> None:
    certificate = made(tmp_path / "s")
    outcomes = {row["record_id"]: row["outcome"] for row in certificate["rows"]}
    assert outcomes == {
        "r0": "suppressed",
        "r1": "left out",
        "r2": "gone",
        "r3": "not suppressed by this plan",
        "r4": "restored",
        "r5": "suppressed, gone since",
        "r6": "unsuppressed, not in the journal",
        "r7": "suppressed",
    }
    assert certificate["totals"]["suppressed"] == 2
    assert (certificate["state"], certificate["decision"]["standing"]) == ("applied", "signed")
    assert certificate["outcome"]["skipped"] == {"gone": 1, "recalled": 1}
    first = certificate["rows"][-1]
    assert first["suppressed"]["before_hash"] != first["suppressed"]["after_hash"]
    assert "what r0 says" not in certificate_text(certificate)
    found = verify(certificate_text(certificate).encode(), OPERATORS)
    assert (found.ok, found.kind, found.plan_id) == (True, "certificate", certificate["plan_id"])
    assert any("signed by Ada" in line for line in found.notes)
    assert any("not sealed" in line for line in found.notes)


def test_a_claimed_decision_is_called_a_claim_7(tmp_path: Path) -> None:
    found = verify(certificate_text(made(tmp_path / "s", signed=False)).encode())
    assert found.ok
    assert any("claimed" in line and "no proof" in line for line in found.notes)


def test_a_seal_says_who_issued_it_and_holds_to_nothing_else_10(tmp_path: Path) -> None:
    certificate = made(tmp_path / "s", key=ADA)
    text = certificate_text(certificate)
    assert any("sealed by Ada" in line for line in verify(text.encode(), OPERATORS).notes)
    assert any("not verified" in line for line in verify(text.encode()).notes)
    revoked = revoke_operator(OPERATORS, "Ada", now=NOW + 9 * HOUR)
    assert any("revoked since" in line for line in verify(text.encode(), revoked).notes)
    others = add_operator((), "Eve", public_text(EVE), now=NOW)
    assert not verify(text.encode(), others).ok
    # Somebody who alters it and makes every hash anew cannot make the seal.
    certificate["decision"]["by"] = "Eve"
    assert not verify(rehashed(certificate), OPERATORS).ok


def rehashed(certificate: dict[str, Any]) -> bytes:
    """A certificate whose own hash was made to fit again."""
    from fallow.usecases.certificate import _digest

    certificate["merkle_root"] = merkle_root(certificate["rows"])
    certificate["certificate_sha256"] = _digest(certificate)
    return certificate_text(certificate).encode()


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another outcome": lambda c: c["rows"][0].update(outcome="left out"),
    "a row too few": lambda c: c["rows"].pop(),
    "another order": lambda c: c["rows"].reverse(),
    "other totals": lambda c: c["totals"].update(suppressed=3),
    "another approver": lambda c: c["decision"].update(by="Eve"),
    "another reason": lambda c: c["decision"].update(reason="autumn"),
    "other leave-outs": lambda c: c["decision"].update(leave_out=[]),
    "the signature gone": lambda c: c["decision"].pop("signature"),
    "another plan": lambda c: c["plan"].update(as_of="2026-11-30T00:00:00Z"),
    "another store": lambda c: c["store"].update(identity="filesystem:other"),
    "a field more": lambda c: c.update(note="trust me"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_with_its_hashes_made_to_fit_contradicts_the_rest_of_the_file_10(tmp_path: Path, lie: str) -> None:
    certificate = made(tmp_path / "s")
    assert verify(rehashed(certificate), OPERATORS).ok
    LIES[lie](certificate)
    assert not verify(rehashed(certificate), OPERATORS).ok


def places(data: bytes, step: int) -> range:
    return range(0, len(data), step)


def flipped(data: bytes, place: int) -> list[bytes]:
    """The file with one byte changed: a bit, a blank, a digit more, gone, doubled."""
    found = [bytes([data[place] ^ 1]), bytes([data[place] ^ 0x20]), b" ", b"0", b"", data[place : place + 1] * 2]
    return [data[:place] + new + data[place + 1 :] for new in found if new != data[place : place + 1]]


def check_every_byte(data: bytes, step: int) -> int:
    assert verify(data, OPERATORS).ok
    number = 0
    for place in places(data, step):
        for changed in flipped(data, place):
            found = verify(changed, OPERATORS)
            assert not found.ok, (place, data[max(0, place - 20) : place + 20])
            number += 1
    return number


def test_every_single_byte_change_of_a_certificate_and_of_a_plan_s_file_is_found_10(tmp_path: Path) -> None:
    certificate = certificate_text(made(tmp_path / "s", key=ADA)).encode()
    assert check_every_byte(certificate, 23) > 2000
    with open_provider(str(tmp_path / "s")) as provider:
        plan = load_plan(provider, json.loads(certificate)["plan_id"])
    printed = json.dumps({"schema_version": 1, **plan.document}, ensure_ascii=False).encode() + b"\n"
    assert check_every_byte(printed, 11) > 2000


@pytest.mark.long
def test_every_byte_of_a_certificate_and_of_a_plan_s_file_10(tmp_path: Path) -> None:
    certificate = certificate_text(made(tmp_path / "s", key=ADA)).encode()
    assert check_every_byte(certificate, 1) > 50_000
    with open_provider(str(tmp_path / "s")) as provider:
        plan = load_plan(provider, json.loads(certificate)["plan_id"])
    check_every_byte(json.dumps({"schema_version": 1, **plan.document}, ensure_ascii=False).encode() + b"\n", 1)


def test_every_single_byte_change_of_a_stored_plan_is_refused_or_changes_nothing_6_7(tmp_path: Path) -> None:
    """Head and parts as they lie in the store: what is loaded is what was planned, or nothing is."""
    root = tmp_path / "s"
    with store(root, record("r1"), record("r2")) as provider:
        plan = planned(provider)
        standing = stored_plan(provider, plan.plan_id, NOW)
        refused = 0
        for path in sorted((root / "shared_memory").glob("fallow-plan*.json")):
            good = path.read_bytes()
            part = "planpart" in path.name
            begin = good.index(rb"\"text\": \"") + 12 if part else good.index(b'"content"') + 12
            for place in range(begin, good.index(b'"memory_type"') - 12, 3):
                for changed in flipped(good, place):
                    path.write_bytes(changed)
                    try:
                        loaded = load_plan(provider, plan.plan_id)
                    except FallowError:
                        refused += 1
                        continue
                    assert loaded == plan
                    # A blank more in a head says the same; in the document even that is refused.
                    assert not part, (place, changed[max(0, place - 20) : place + 20])
                    assert stored_plan(provider, plan.plan_id, NOW) == standing
            path.write_bytes(good)
        assert refused > 3000
        assert load_plan(provider, plan.plan_id) == plan


def test_what_was_not_decided_is_not_certified_10(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("r1")) as provider, pytest.raises(PlanStateError):
        certify(provider, planned(provider).plan_id, now=NOW)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.recursive(st.none() | st.text(max_size=5), st.lists).map(json.dumps)))
def test_no_file_whatever_breaks_the_verification(data: bytes | str) -> None:
    assert not verify(data.encode() if isinstance(data, str) else data).ok


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(["plan", "decision", "rows", "totals", "seal", "store"]), value=JSON)
def test_no_shape_whatever_breaks_the_verification(name: str, value: Any) -> None:
    certificate = {"kind": "fallow certificate of disposition", "plan_id": "x", "seal": None, name: value}
    assert not verify(certificate_text(certificate).encode()).ok


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries({"record_id": st.text(max_size=4)}), min_size=1, max_size=9), data=st.data())
def test_the_merkle_root_depends_on_every_row_and_on_their_order_10(rows: list[dict[str, str]], data: Any) -> None:
    root = merkle_root(rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    changed = [*rows]
    changed[place] = {"record_id": rows[place]["record_id"] + "!"}
    assert merkle_root(changed) != root
    assert merkle_root([*rows, rows[-1]]) != root
    assert merkle_root(rows[:-1]) != root
    if rows[::-1] != rows:
        assert merkle_root(rows[::-1]) != root


def test_the_csv_has_a_line_a_record_and_no_formula_10(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("=HYPERLINK(1)"), record('r,"2"\n')) as provider:
        plan = planned(provider)
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="@Ada",
            count=2,
            approval=ApprovalConfig(),
            now=NOW,
        )
        apply_plan(provider, plan.plan_id, now=NOW)
        certificate = certify(provider, plan.plan_id, now=NOW)
    rows = list(csv.DictReader(io.StringIO(certificate_csv(certificate))))
    assert {row["record_id"] for row in rows} == {"'=HYPERLINK(1)", 'r,"2"\n'}
    assert all(row["decided_by"] == "'@Ada" and "claimed" in row["standing"] for row in rows)
    assert {row["leaf"] for row in rows} == {leaf(row) for row in certificate["rows"]}
