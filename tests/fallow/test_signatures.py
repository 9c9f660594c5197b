"""Signed approvals (SPEC §7, DESIGN §6): what does not hold is refused by its own reason, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from fallow.acting.apply import apply_plan
from fallow.acting.configured_files import read_register, registered_operators
from fallow.acting.deciding import decide, sign_decision
from fallow.acting.signatures import (
    FORM,
    Operator,
    Statement,
    add_operator,
    decrypted,
    encrypted,
    make_key,
    operators_text,
    parse_operators,
    public_text,
    read_token,
    revoke_operator,
    sign,
    verify_signature,
)
from fallow.model.errors import ApprovalRefusedError, OperatorError, SignatureRefusedError
from fallow.model.settings import ApprovalConfig, resolve
from fallow.model.times import MICROSECONDS_PER_HOUR, iso
from fallow.plans.decision import Decision
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import expire_plans, reopen, stored_plan
from fallow.port.protocol import Provider
from fallow.usecases.suppressed import suppressed_records
from tests.fallow.small_stores import NOW, planned, record, store, tree

HOUR = MICROSECONDS_PER_HOUR
ADA, BOB, MALLORY = make_key(), make_key(), make_key()


def register(folder: Path, *operators: Operator) -> ApprovalConfig:
    """Signed approvals required, by these operators."""
    (folder / "operators.json").write_text(operators_text(operators))
    return ApprovalConfig(require_signed=True, operators_file=str(folder / "operators.json"))


def known(name: str, key: Ed25519PrivateKey, **fields: Any) -> Operator:
    return Operator(name=name, public_key=public_text(key), **fields)


class World:
    """A store with a plan of six records, and two registered operators."""

    def __init__(self, provider: Provider, root: Path, folder: Path) -> None:
        self.provider, self.root, self.folder = provider, root, folder
        self.plan: RetentionPlan = planned(provider)
        self.approval = register(folder, known("Ada", ADA), known("Bob", BOB))

    def statement(self, **changes: Any) -> Statement:
        """What Ada would have to sign, with changes."""
        token = sign_decision(self.provider, self.plan.plan_id, verdict="approved", approved_by="Ada", key=ADA, now=NOW)
        return replace(read_token(token)[0], **changes)

    def decide(self, token: str | None, *, now: int = NOW, **changes: Any) -> Decision:
        asked = {"verdict": "approved", "approved_by": "Ada", **changes}
        return decide(
            self.provider, self.plan.plan_id, signature=token, now=now, **{"approval": self.approval, **asked}
        )

    def refusal(self, call: Callable[[], Any]) -> str:
        """Why the call is refused; not a byte of the store changes."""
        before = tree(self.root)
        with pytest.raises(SignatureRefusedError) as caught:
            call()
        assert tree(self.root) == before
        assert caught.value.hint
        return caught.value.reason


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    rows = [record(f"r{n}", days=90 + n) for n in range(6)] + [record(f"k{n}", importance=0.9) for n in range(40)]
    with store(tmp_path / "store", *rows) as provider:
        yield World(provider, tmp_path / "store", tmp_path)


def test_a_signed_approval_is_recorded_as_signed_and_applied_7(world: World) -> None:
    token = sign(world.statement(leave_out=(("conversation_memory", "r3"),), reason="spring"), ADA)
    decision = world.decide(token)
    assert (decision.standing, decision.by, decision.reason, decision.count) == ("signed", "Ada", "spring", 6)
    report = apply_plan(world.provider, world.plan.plan_id, now=NOW + HOUR, approval=world.approval)
    assert (report.state, report.applied, report.left_out, report.standing) == ("Applied", 5, ["r3"], "signed")
    assert {item.standing for item in suppressed_records(world.provider)} == {"signed"}
    # Again, long after the signature has run out: the plan is at its end, nothing more is written by it.
    before = tree(world.root)
    assert apply_plan(world.provider, world.plan.plan_id, now=NOW + 900 * HOUR, approval=world.approval).already == 5
    assert tree(world.root) == before


def test_a_rejection_can_be_signed_and_need_not_be_7(world: World) -> None:
    assert world.decide(sign(world.statement(decision="rejected"), ADA), verdict="rejected").standing == "signed"
    other = planned(world.provider, max_candidates=2)
    rejected = decide(
        world.provider, other.plan_id, verdict="rejected", approved_by="Bob", approval=world.approval, now=NOW
    )
    assert rejected.standing == "claimed, no approvers configured"


FORGERIES: dict[str, tuple[str, Callable[[World], str]]] = {
    "nothing": ("unsigned", lambda world: ""),
    "no signature": ("malformed", lambda world: "approve it please"),
    "half of one": ("malformed", lambda world: sign(world.statement(), ADA).rpartition(".")[0]),
    "another form": ("malformed", lambda world: sign(world.statement(), ADA).replace(FORM, "fallow2", 1)),
    "a stranger's key": ("unknown_key", lambda world: sign(world.statement(), MALLORY)),
    "another operator's key": ("wrong_approver", lambda world: sign(world.statement(), BOB)),
    "forged": ("forged", lambda world: forged(world.statement())),
    "altered": ("forged", lambda world: altered(sign(world.statement(), ADA), "count", 5)),
    "wrong plan": ("wrong_plan", lambda world: sign(world.statement(plan_id="forget-plan-" + "0" * 28), ADA)),
    "wrong document": ("wrong_document", lambda world: sign(world.statement(document_sha256="0" * 64), ADA)),
    "wrong store": ("wrong_store", lambda world: sign(world.statement(store_identity="filesystem:other"), ADA)),
    "wrong opening": ("replayed", lambda world: sign(world.statement(generation=1), ADA)),
    "wrong decision": ("wrong_decision", lambda world: sign(world.statement(decision="rejected"), ADA)),
    "wrong count": ("wrong_count", lambda world: sign(world.statement(count=5), ADA)),
    "expired": ("expired", lambda world: sign(world.statement(expires_at=NOW), ADA)),
    "signed tomorrow": ("signed_in_future", lambda world: sign(world.statement(signed_at=NOW + 24 * HOUR), ADA)),
}


def forged(statement: Statement) -> str:
    """Ada's key is named, Mallory's signs."""
    ours = sign(statement, ADA).split(".")
    return ".".join([*ours[:2], sign(statement, MALLORY).split(".")[2]])


def altered(token: str, name: str, value: Any) -> str:
    """A signed approval with one field changed after it was signed."""
    form, _, signature = token.split(".")
    statement = replace(read_token(token)[0], **{name: value})
    return ".".join([form, sign(statement, ADA).split(".")[1], signature])


@pytest.mark.parametrize("name", FORGERIES)
def test_what_does_not_hold_is_refused_by_its_own_reason_and_nothing_is_written_7(world: World, name: str) -> None:
    reason, make = FORGERIES[name]
    token = make(world)
    assert world.refusal(lambda: world.decide(token)) == reason
    assert stored_plan(world.provider, world.plan.plan_id, NOW).decision is None


def test_what_the_form_says_beside_the_signature_must_be_what_was_signed_7(world: World) -> None:
    token = sign(world.statement(leave_out=(("conversation_memory", "r1"),), reason="spring"), ADA)
    assert world.refusal(lambda: world.decide(token, leave_out=["r2"])) == "wrong_leave_outs"
    assert world.refusal(lambda: world.decide(token, count=5)) == "wrong_count"
    assert world.refusal(lambda: world.decide(token, reason="autumn")) == "wrong_reason"
    assert world.refusal(lambda: world.decide(token, approved_by="Bob")) == "wrong_approver"
    assert world.refusal(lambda: world.decide(token, verdict="rejected")) == "wrong_decision"
    assert world.decide(token, leave_out=["r1"], count=6, reason="spring").standing == "signed"


def test_revoked_and_expired_keys_sign_nothing_7(world: World) -> None:
    token = sign(world.statement(), ADA)
    operators = parse_operators(Path(world.approval.operators_file).read_text(), "here")
    register(world.folder, *revoke_operator(operators, "Ada", now=NOW, why="lost"))
    assert world.refusal(lambda: world.decide(token)) == "revoked"
    register(world.folder, known("Ada", ADA, expires_at=NOW))
    assert world.refusal(lambda: world.decide(token)) == "key_expired"
    register(world.folder)
    assert world.refusal(lambda: world.decide(token)) == "no_operators"
    register(world.folder, known("Ada", ADA))
    assert world.decide(token).standing == "signed"


def test_a_signature_for_an_earlier_opening_is_a_replay_7(world: World) -> None:
    """The plan expired and was opened again: what was signed for the first opening opens nothing now."""
    token = sign(world.statement(expires_at=NOW + 900 * HOUR), ADA)
    later = NOW + 100 * HOUR
    reopen(world.provider, world.plan.plan_id, now=later, expiry_hours=72)
    assert stored_plan(world.provider, world.plan.plan_id, later).state == "planned"
    assert world.refusal(lambda: world.decide(token, now=later)) == "replayed"
    assert expire_plans(world.provider, later) == []


def test_a_signature_is_for_one_store_only_7(world: World, tmp_path: Path) -> None:
    """The same records planned elsewhere have the same plan id, and another store."""
    token = sign(world.statement(), ADA)
    rows = [json.loads(path.read_text()) for path in (world.root / "conversation_memory").glob("[rk]*.json")]
    with store(tmp_path / "twin", *rows) as twin:
        plan = planned(twin)
        assert plan.plan_id == world.plan.plan_id
        before = tree(tmp_path / "twin")
        with pytest.raises(SignatureRefusedError) as caught:
            decide(
                twin,
                plan.plan_id,
                verdict="approved",
                approved_by="Ada",
                signature=token,
                approval=world.approval,
                now=NOW,
            )
        assert caught.value.reason in {"wrong_store", "wrong_document"}
        assert tree(tmp_path / "twin") == before


def rewrite(world: World, **changes: Any) -> None:
    """Whoever can write the store changes the recorded decision."""
    (path,) = (world.root / "shared_memory").glob("fallow-decision-*.json")
    row = json.loads(path.read_text())
    content = json.loads(row["content"])
    content.update(changes)
    content = {name: value for name, value in content.items() if value is not None}
    path.write_text(json.dumps({**row, "content": json.dumps(content)}))


TAMPERED: dict[str, tuple[str, Callable[[World], dict[str, Any]]]] = {
    "leave-outs taken away": ("wrong_leave_outs", lambda world: {"leave_out": []}),
    "another approver": ("wrong_approver", lambda world: {"by": "Bob"}),
    "another reason": ("wrong_reason", lambda world: {"reason": "because"}),
    "another count": ("wrong_count", lambda world: {"count": 7}),
    "the signature taken away": ("malformed", lambda world: {"signature": None}),
    "called a claim": ("unsigned", lambda world: {"signature": None, "standing": "claimed"}),
    "another's signature": ("unknown_key", lambda world: {"signature": sign(world.statement(), MALLORY)}),
    "a forged signature": ("forged", lambda world: {"signature": forged(world.statement())}),
    "decided long after it was signed": ("expired", lambda world: {"decided_at": iso(NOW + 99 * HOUR)}),
    "a rejection turned": ("wrong_decision", lambda world: {"signature": sign(rejection(world), ADA)}),
}


def rejection(world: World) -> Statement:
    return world.statement(decision="rejected", leave_out=(("conversation_memory", "r1"),))


@pytest.mark.parametrize("name", TAMPERED)
def test_apply_verifies_the_recorded_approval_again_and_writes_nothing_by_a_false_one_7(
    world: World, name: str
) -> None:
    world.decide(sign(world.statement(leave_out=(("conversation_memory", "r1"),)), ADA))
    reason, changes = TAMPERED[name]
    rewrite(world, **changes(world))
    apply = lambda: apply_plan(world.provider, world.plan.plan_id, now=NOW + HOUR, approval=world.approval)  # noqa: E731
    assert world.refusal(apply) == reason


def test_a_key_revoked_after_the_approval_stops_the_apply_7(world: World) -> None:
    world.decide(sign(world.statement(), ADA))
    register(world.folder, known("Ada", ADA, revoked_at=NOW + 1))
    apply = lambda: apply_plan(world.provider, world.plan.plan_id, now=NOW + HOUR, approval=world.approval)  # noqa: E731
    assert world.refusal(apply) == "revoked"


def test_apply_asks_the_environment_where_its_caller_says_nothing_7(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ApprovalConfig()
    decide(world.provider, world.plan.plan_id, verdict="approved", approved_by="Ada", count=6, approval=plain, now=NOW)
    monkeypatch.setenv("FALLOW_REQUIRE_SIGNED_APPROVALS", "true")
    assert world.refusal(lambda: apply_plan(world.provider, world.plan.plan_id, now=NOW + HOUR)) == "unsigned"
    monkeypatch.delenv("FALLOW_REQUIRE_SIGNED_APPROVALS")
    assert apply_plan(world.provider, world.plan.plan_id, now=NOW + HOUR).applied == 6


def test_four_eyes_bar_everyone_who_ever_asked_7(tmp_path: Path) -> None:
    rows = [record(f"r{n}") for n in range(3)] + [record(f"k{n}", importance=0.9) for n in range(30)]
    with store(tmp_path / "store", *rows) as provider:
        plan = planned(provider)
        reopen(provider, plan.plan_id, now=NOW + 100 * HOUR, expiry_hours=72, requested_by="ada ")
        reopen(provider, plan.plan_id, now=NOW + 200 * HOUR, expiry_hours=72, requested_by="Bob")
        now = NOW + 201 * HOUR
        before = tree(tmp_path / "store")
        approval = replace(register(tmp_path, known("Ada", ADA), known("Bob", BOB)), four_eyes=True)
        for name, key in (("Ada", ADA), ("Bob", BOB)):
            token = sign_decision(provider, plan.plan_id, verdict="approved", approved_by=name, key=key, now=now)
            with pytest.raises(ApprovalRefusedError, match="requested"):
                decide(
                    provider,
                    plan.plan_id,
                    verdict="approved",
                    approved_by=name,
                    signature=token,
                    approval=approval,
                    now=now,
                )
        assert tree(tmp_path / "store") == before


def test_prefect_can_switch_none_of_this_off_7() -> None:
    """Who can answer a form can often write variables: what guards the form is the environment's alone."""
    variable = {"approval": {"require_signed": False, "operators_file": "mine.json", "four_eyes": False}}
    environ = {"FALLOW_REQUIRE_SIGNED_APPROVALS": "1", "FALLOW_OPERATORS_FILE": "ours.json", "FALLOW_FOUR_EYES": "1"}
    resolved = resolve(variable=variable, environ=environ)
    approval = resolved.approval
    assert (approval.require_signed, approval.operators_file, approval.four_eyes) == (True, "ours.json", True)
    assert len(resolved.problems) == 3


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_single_byte_change_of_a_signed_approval_is_refused_7(data: st.DataObject) -> None:
    statement = Statement(
        plan_id="forget-plan-" + "a" * 28,
        document_sha256="b" * 64,
        store_identity="filesystem:x",
        generation=0,
        decision="approved",
        leave_out=(("summaries", "ü\u2028"),),
        count=3,
        by="Ada",
        reason="spring, 'and' \"more\"",
        signed_at=NOW,
        expires_at=NOW + HOUR,
    )
    token = sign(statement, ADA)
    operators = (known("Ada", ADA),)
    assert verify_signature(token, operators, at=NOW)[0].by == "Ada"
    place = data.draw(st.integers(0, len(token) - 1))
    char = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda char: char != token[place]))
    with pytest.raises(SignatureRefusedError) as caught:
        verify_signature(token[:place] + char + token[place + 1 :], operators, at=NOW)
    assert caught.value.reason in {"malformed", "forged", "unknown_key"}


def test_every_byte_of_a_signature_counts_7(world: World) -> None:
    """All places of one approval, one other character each."""
    token = sign(world.statement(), ADA)
    operators = (known("Ada", ADA),)
    for place, char in enumerate(token):
        other = "A" if char != "A" else "B"
        with pytest.raises(SignatureRefusedError):
            verify_signature(token[:place] + other + token[place + 1 :], operators, at=NOW)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200))
def test_no_text_whatever_is_taken_for_a_signature_7(text: str) -> None:
    with pytest.raises(SignatureRefusedError) as caught:
        verify_signature(text, (known("Ada", ADA),), at=NOW)
    assert caught.value.reason == "malformed"
    assert text.strip()[:20] not in str(caught.value) or len(text.strip()) < 4


# Keys and the register ------------------------------------------------------------------------------------


def test_a_private_key_is_encrypted_7() -> None:
    data = encrypted(ADA, "correct horse")
    assert b"ENCRYPTED PRIVATE KEY" in data
    assert public_text(decrypted(data, "correct horse")) == public_text(ADA)
    for bad in ("wrong horse", ""):
        with pytest.raises(OperatorError, match="passphrase"):
            decrypted(data, bad)
    with pytest.raises(OperatorError, match="shorter"):
        encrypted(BOB, "short")
    with pytest.raises(OperatorError, match="no key"):
        decrypted(b"no key", "correct horse")
    bare = ADA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(OperatorError, match="not encrypted"):
        decrypted(bare, "correct horse")


def test_the_register_is_whole_or_refused_7(tmp_path: Path) -> None:
    operators = add_operator((), " Ada ", public_text(ADA), now=NOW)
    assert operators[0].name == "Ada"
    for name, text in (("", public_text(BOB)), ("Bob", "no key"), ("Ada", public_text(ADA))):
        with pytest.raises(OperatorError):
            add_operator(operators, name, text, now=NOW)
    with pytest.raises(OperatorError):
        revoke_operator(operators, "Carol", now=NOW)
    twice = revoke_operator(revoke_operator(operators, "Ada", now=NOW), operators[0].key_id, now=NOW + 1)
    assert twice[0].revoked_at == NOW
    path = tmp_path / "operators.json"

    def read(text: str, inline: str = "") -> tuple[Operator, ...]:
        path.write_text(text)
        return registered_operators(ApprovalConfig(operators_file=str(path), operators=inline))

    assert read(operators_text(twice)) == twice
    # A revocation in either place holds.
    fresh = json.dumps([known("Ada", ADA).to_json()])
    assert read(operators_text(twice), fresh)[0].revoked_at == NOW
    assert read(operators_text(operators), operators_text(twice))[0].revoked_at == NOW
    for bad in (
        "",
        "{}",
        "[1]",
        '[{"name": "Ada"}]',
        json.dumps([known("Ada", ADA).to_json()] * 2),
        json.dumps([{**known("Ada", ADA).to_json(), "expires_at": "soon"}]),
    ):
        with pytest.raises(OperatorError):
            read(bad)
    with pytest.raises(OperatorError):
        read_register(tmp_path / "nowhere.json")
    with pytest.raises(OperatorError, match="two people"):
        read(operators_text(operators), json.dumps([known("Eve", ADA).to_json()]))
