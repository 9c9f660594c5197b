"""Approvals that their approver signed: Ed25519 keys, statements, and who is registered (SPEC §7, DESIGN §6).

A signed approval is one line of text that can be pasted anywhere: the statement (which plan, document,
store, opening, what was decided, what is left out, how many, by whom, why, when, how long it holds) and the
signature over its very bytes. The private half stays with the operator, in an encrypted file; the public
halves stand in a file or the environment of whoever applies, never in the store and never in Prefect:
who can answer a form must not be able to register a key.

No clock and no environment of its own: instants and registrations are arguments.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fallow.model.errors import OperatorError, SignatureRefusedError
from fallow.model.times import FUTURE_TOLERANCE, MICROSECONDS_PER_HOUR, iso, parse_time

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


#: The first part of a signed approval; a later form of it gets another.
FORM: Final = "fallow1"
#: What is signed begins with this, so that no signature made for another purpose can be passed off as one.
_DOMAIN: Final = b"fallow signed approval, form 1\n"
_SEAL_DOMAIN: Final = b"fallow certificate, form 1\n"
#: A signed approval is to be handed in within this long of being signed, and before its plan expires.
VALID_HOURS: Final = 24.0
MIN_PASSPHRASE: Final = 8
MAX_TOKEN: Final = 1_000_000

_FIELDS: Final = frozenset(
    {
        "plan_id",
        "document_sha256",
        "store_identity",
        "generation",
        "decision",
        "leave_out",
        "count",
        "by",
        "reason",
        "signed_at",
        "expires_at",
        "key_id",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What an operator signs about a plan.

    Attributes:
        generation: which opening of the plan: a plan that expired and was opened again asks anew.
        leave_out: (memory type, record id) of planned records to spare, sorted.
        count: records planned, before leave-outs.
        by: the operator's registered name.
        signed_at, expires_at: microseconds; the statement is to be handed in between them.
        key_id: which key signed, see :func:`key_id_of`.
    """

    plan_id: str
    document_sha256: str
    store_identity: str
    generation: int
    decision: Literal["approved", "rejected"]
    leave_out: tuple[tuple[str, str], ...]
    count: int
    by: str
    reason: str
    signed_at: int
    expires_at: int
    key_id: str = ""

    def to_bytes(self) -> bytes:
        """The one spelling of the statement, as it is signed."""
        content = {
            **{name: getattr(self, name) for name in _FIELDS},
            "leave_out": [list(key) for key in self.leave_out],
        }
        return json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """The inverse of :meth:`to_bytes`, and of nothing else.

        Raises:
            ValueError: the bytes are no statement, or not in its one spelling.
        """
        content = json.loads(data)
        if not isinstance(content, dict) or content.keys() != _FIELDS:
            raise ValueError("not a statement")
        leave_out = tuple((str(kind), str(name)) for kind, name in content.pop("leave_out"))
        statement = cls(**content, leave_out=leave_out)
        if statement.to_bytes() != data:
            raise ValueError("not in its one spelling")
        return statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A registered key and whose it is. Times are microseconds; None: never."""

    name: str
    public_key: str
    added_at: int | None = None
    expires_at: int | None = None
    revoked_at: int | None = None
    revoked_why: str = ""

    @property
    def key_id(self) -> str:
        """See :func:`key_id_of`."""
        return key_id_of(_decode(self.public_key))

    def to_json(self) -> dict[str, Any]:
        """As the operators' file carries it."""
        times = {name: getattr(self, name) for name in ("added_at", "expires_at", "revoked_at")}
        return {
            "name": self.name,
            "public_key": self.public_key,
            **{name: iso(value) for name, value in times.items() if value is not None},
            **({"revoked_why": self.revoked_why} if self.revoked_why else {}),
        }


def key_id_of(public: bytes) -> str:
    """A key's short name: the first 16 hex digits of the SHA-256 of its 32 public bytes."""
    return hashlib.sha256(public).hexdigest()[:16]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """URL-safe base64 without padding, in its one spelling.

    Raises:
        ValueError: anything else.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError, UnicodeEncodeError):
        raise ValueError("not base64") from None
    if _encode(data) != text:
        raise ValueError("not in its one spelling")
    return data


# Keys -----------------------------------------------------------------------------------------------------


def make_key() -> Ed25519PrivateKey:
    """A new private key from the system's own randomness."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def public_text(key: Ed25519PrivateKey) -> str:
    """The public half as it is registered: 43 characters."""
    return _encode(key.public_key().public_bytes_raw())


def encrypted(key: Ed25519PrivateKey, passphrase: str) -> bytes:
    """A private key as the PEM file that its operator keeps, encrypted under the passphrase.

    Raises:
        OperatorError: the passphrase is too short.
    """
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    if len(passphrase) < MIN_PASSPHRASE:
        raise OperatorError(f"the passphrase is shorter than {MIN_PASSPHRASE} characters", hint="choose a longer one")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase.encode()))


def decrypted(data: bytes, passphrase: str) -> Ed25519PrivateKey:
    """The inverse of :func:`encrypted`.

    Raises:
        OperatorError: it is no encrypted Ed25519 key, or the passphrase is wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not passphrase:
        raise OperatorError("the passphrase is empty", hint="give the passphrase of the key's file")
    try:
        key = load_pem_private_key(data, passphrase.encode())
    except TypeError:
        raise OperatorError("the key is not encrypted", hint="fallow operator keygen makes one that is") from None
    except (ValueError, UnsupportedAlgorithm):
        raise OperatorError(
            "the key cannot be read: another passphrase, or no key", hint="check the passphrase and the file"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise OperatorError("that is no Ed25519 key", hint="fallow operator keygen makes one")
    return key


def _public(text: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(_decode(text))


# Who is registered ----------------------------------------------------------------------------------------


def parse_operators(text: str, where: str) -> tuple[Operator, ...]:
    """Registered operators from their JSON: ``{"operators": [{"name", "public_key", …}]}``, or the list alone.

    Args:
        where: what to call the source in an error.

    Raises:
        OperatorError: it is not that, a key is none, or a key stands twice. There is no half of a register.
    """

    def refuse(why: str) -> OperatorError:
        return OperatorError(f"{where} {why}", hint="fallow operator add writes it; nothing was approved")

    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise refuse("is not JSON") from None
    items = data.get("operators") if isinstance(data, dict) else data
    if not isinstance(items, list):
        raise refuse("names no list of operators")
    found: list[Operator] = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"].strip():
            raise refuse("has an operator without a name")
        try:
            public = str(item.get("public_key"))
            _public(public)
        except ValueError:
            raise refuse(f"has no usable key for '{item['name'][:60]}'") from None
        times = {name: parse_time(item.get(name)) for name in ("added_at", "expires_at", "revoked_at")}
        if any(times[name] is None and item.get(name) is not None for name in times):
            raise refuse(f"has an unreadable time for '{item['name'][:60]}'")
        name = unicodedata.normalize("NFC", item["name"]).strip()
        found.append(Operator(name=name, public_key=public, **times, revoked_why=str(item.get("revoked_why") or "")))
    if len({operator.key_id for operator in found}) < len(found):
        raise refuse("has one key twice")
    return tuple(found)


def merged(*registers: Sequence[Operator]) -> tuple[Operator, ...]:
    """Several registers as one. A key in two of them has one name; its revocation holds wherever it stands.

    Raises:
        OperatorError: a key is registered for two people.
    """
    found: dict[str, Operator] = {}
    for operator in (item for register in registers for item in register):
        other = found.get(operator.key_id)
        if other is not None and other.name != operator.name:
            raise OperatorError(
                f"key {operator.key_id} is registered for two people", hint="a key belongs to one operator"
            )
        if other is None or other.revoked_at is None:
            found[operator.key_id] = operator
    return tuple(found.values())


def operators_text(operators: Iterable[Operator]) -> str:
    """The register as its file has it; :func:`parse_operators` reads it."""
    content = {"operators": [operator.to_json() for operator in operators]}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def add_operator(
    operators: Sequence[Operator], name: str, public_key: str, *, now: int, expires_at: int | None = None
) -> tuple[Operator, ...]:
    """The register with one more key. A person may have several keys, a key has one person.

    Raises:
        OperatorError: the name is blank, the key is none, or is registered already.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name or any(unicodedata.category(char).startswith("C") for char in name):
        raise OperatorError("the operator has no name", hint="add --name")
    try:
        _public(public_key.strip())
    except ValueError:
        raise OperatorError(
            "that is no public key", hint="43 characters, as fallow operator keygen printed them"
        ) from None
    operator = Operator(name=name, public_key=public_key.strip(), added_at=now, expires_at=expires_at)
    if any(other.key_id == operator.key_id for other in operators):
        raise OperatorError(
            f"key {operator.key_id} is registered already", hint="a revoked key stays revoked: make a new one"
        )
    return (*operators, operator)


def revoke_operator(operators: Sequence[Operator], which: str, *, now: int, why: str = "") -> tuple[Operator, ...]:
    """The register with the keys of a person, or one key by its id, revoked; earlier revocations stand.

    Raises:
        OperatorError: nobody and no key is called that.
    """
    which = unicodedata.normalize("NFC", which).strip()
    hit = [operator for operator in operators if which in {operator.name, operator.key_id}]
    if not hit:
        raise OperatorError(f"'{which[:60]}' is no operator and no key here", hint="fallow operator list shows them")
    return tuple(
        replace(operator, revoked_at=now, revoked_why=why)
        if operator in hit and operator.revoked_at is None
        else operator
        for operator in operators
    )


# Signing and verifying ------------------------------------------------------------------------------------


def sign(statement: Statement, key: Ed25519PrivateKey) -> str:
    """A signed approval: ``fallow1.<statement>.<signature>``, one line, to be pasted or handed on."""
    statement = replace(statement, key_id=key_id_of(key.public_key().public_bytes_raw()))
    data = statement.to_bytes()
    return f"{FORM}.{_encode(data)}.{_encode(key.sign(_DOMAIN + data))}"


def validity(now: int, plan_expires_at: int | None) -> int:
    """Until when a statement signed now is to be handed in: a day, and not past its plan."""
    latest = now + round(VALID_HOURS * MICROSECONDS_PER_HOUR)
    return latest if plan_expires_at is None else min(latest, plan_expires_at)


def refused(reason: str, message: str, hint: str = "") -> SignatureRefusedError:
    """A refusal with its machine-readable reason."""
    return SignatureRefusedError(message, hint=hint or "nothing was written; sign again", reason=reason)


def read_token(token: str) -> tuple[Statement, bytes, bytes]:
    """A signed approval's statement, the bytes that were signed, and the signature; nothing is verified yet.

    Raises:
        SignatureRefusedError: ``malformed``.
    """
    parts = token.strip().split(".") if len(token) <= MAX_TOKEN else []
    try:
        prefix, body, signature = parts
        if prefix != FORM:
            raise ValueError("another form")
        data, raw = _decode(body), _decode(signature)
        statement = Statement.from_bytes(data)
        if not isinstance(statement.signed_at, int) or not isinstance(statement.expires_at, int):
            raise ValueError("no times")
        return statement, data, raw
    except (ValueError, TypeError, KeyError, RecursionError):
        raise refused("malformed", "that is no signed approval", "paste the whole line that fallow printed") from None


def verify_signature(token: str, operators: Sequence[Operator], *, at: int) -> tuple[Statement, Operator]:
    """Who signed what: the signature, the key's registration, and the statement's own time.

    Args:
        at: when the statement was, or is, handed in.

    Raises:
        SignatureRefusedError: ``malformed``, ``no_operators``, ``unknown_key``, ``forged``, ``revoked``,
            ``key_expired``, ``wrong_approver`` (the key is another person's), ``signed_in_future``, ``expired``.
    """
    from cryptography.exceptions import InvalidSignature

    statement, data, raw = read_token(token)
    if not operators:
        raise refused(
            "no_operators",
            "no operators are registered here, so no signature can be verified",
            "FALLOW_OPERATORS_FILE names who may sign; nothing was written",
        )
    operator = next((item for item in operators if item.key_id == statement.key_id), None)
    if operator is None:
        raise refused("unknown_key", f"no operator is registered with key {statement.key_id[:16]}")
    try:
        _public(operator.public_key).verify(raw, _DOMAIN + data)
    except InvalidSignature:
        raise refused("forged", f"the signature is not by key {operator.key_id}: forged, or altered since") from None
    if operator.revoked_at is not None:
        raise refused("revoked", f"key {operator.key_id} was revoked at {iso(operator.revoked_at)}")
    if operator.expires_at is not None and at >= operator.expires_at:
        raise refused("key_expired", f"key {operator.key_id} expired at {iso(operator.expires_at)}")
    if statement.by != operator.name:
        raise refused("wrong_approver", f"key {operator.key_id} is not the key of '{statement.by[:60]}'")
    if statement.signed_at > at + FUTURE_TOLERANCE:
        raise refused("signed_in_future", f"it says that it was signed at {iso(statement.signed_at)}, which is to come")
    if at >= statement.expires_at:
        raise refused("expired", f"the signed approval expired at {iso(statement.expires_at)}")
    return statement, operator


def compare(statement: Statement, wanted: Mapping[str, Any]) -> None:
    """Holds a signed statement against what it is handed in for: every field of ``wanted`` must be as signed.

    Raises:
        SignatureRefusedError: ``wrong_plan``, ``wrong_store``, ``wrong_document``, ``replayed`` (an earlier
            opening), ``wrong_decision``, ``wrong_leave_outs``, ``wrong_count``, ``wrong_approver``, ``wrong_reason``.
    """
    for name, reason, what in _COMPARED:
        if name in wanted and getattr(statement, name) != wanted[name]:
            raise refused(reason, f"the signature is for {what}")


_COMPARED: Final = (
    ("plan_id", "wrong_plan", "another plan"),
    ("store_identity", "wrong_store", "another store"),
    ("document_sha256", "wrong_document", "another document of this plan"),
    ("generation", "replayed", "an earlier opening of this plan: it was used, or expired, before"),
    ("decision", "wrong_decision", "another decision"),
    ("leave_out", "wrong_leave_outs", "other records to leave out"),
    ("count", "wrong_count", "another number of records"),
    ("by", "wrong_approver", "another approver"),
    ("reason", "wrong_reason", "another reason"),
)


# Seals of certificates ------------------------------------------------------------------------------------


def seal(digest: str, key: Ed25519PrivateKey) -> dict[str, str]:
    """An operator's signature over a certificate's hash; it cannot be passed off as an approval."""
    signature = key.sign(_SEAL_DOMAIN + digest.encode())
    return {"public_key": public_text(key), "signature": _encode(signature)}


def verify_seal(digest: str, sealed: Mapping[str, Any], operators: Sequence[Operator]) -> str:
    """Whose seal it is, in words. A key that is revoked since is named as such: when it sealed cannot be known.

    Raises:
        SignatureRefusedError: ``malformed`` or ``forged``.
        OperatorError: operators are named, and the key is none of theirs.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        if set(sealed) != {"public_key", "signature"}:
            raise ValueError("other fields")
        public = _decode(str(sealed["public_key"]))
        _public(str(sealed["public_key"])).verify(_decode(str(sealed["signature"])), _SEAL_DOMAIN + digest.encode())
    except InvalidSignature:
        raise refused("forged", "the seal is not over this certificate: forged, or altered since") from None
    except (ValueError, KeyError, TypeError):
        raise refused("malformed", "the seal is none") from None
    name = key_id_of(public)
    operator = next((item for item in operators if item.key_id == name), None)
    if operator is not None:
        return f"sealed by {operator.name}, key {name}" + ("" if operator.revoked_at is None else ", revoked since")
    if operators:
        raise OperatorError(f"the seal is by key {name}, which is no operator's", hint="ask who issued the certificate")
    return f"sealed with key {name}: whose it is was not verified, no operators were named"
