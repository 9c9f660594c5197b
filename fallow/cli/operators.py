"""Operators: who signs approvals, with which keys (SPEC §7, DESIGN §6)."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fallow.cli.app import Json, emit, note, say, table
from fallow.model.arguments import instant_or_none
from fallow.model.errors import OperatorError, UsageError
from fallow.model.times import iso, wall_clock
from fallow.showing.tables import counted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: Where a passphrase may stand for runs without a terminal.
UNLOCK_ENV = "FALLOW_KEY_PASSPHRASE"


class OperatorAction(StrEnum):
    """What to do."""

    keygen = "keygen"
    add = "add"
    list = "list"
    revoke = "revoke"


def passphrase(what: str, *, confirm: bool = False) -> str:
    """A key's passphrase: from FALLOW_KEY_PASSPHRASE, else asked for without showing it."""
    given = os.environ.get(UNLOCK_ENV)
    if given:
        return given
    return str(typer.prompt(what, hide_input=True, confirmation_prompt=confirm, err=True))


def read_key(path: Path) -> Ed25519PrivateKey:
    """The private key in an operator's file.

    Raises:
        OperatorError: there is no such file, it is no encrypted key, or the passphrase is wrong.
    """
    from fallow.acting.signatures import decrypted

    try:
        data = path.read_bytes()
    except OSError as error:
        raise OperatorError(
            f"the key file {path} cannot be read: {error.strerror}", hint="fallow operator keygen makes one"
        ) from None
    return decrypted(data, passphrase(f"passphrase of {path}"))


def write_key(path: Path, data: bytes) -> None:
    """Writes a new file that only its owner can read; no key is ever overwritten."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise OperatorError(f"{path} cannot be written: {error.strerror}", hint="choose another file") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def write_register(file: Path, text: str) -> None:
    """Writes the operators' file, whole or not at all."""
    part = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise OperatorError(f"{file} cannot be written: {error.strerror}", hint="check the folder") from None


def operator(
    action: Annotated[OperatorAction, typer.Argument(help="keygen, add, list or revoke.")],
    name: Annotated[str | None, typer.Option("--name", help="The operator's name, as approvals carry it.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="keygen: the new file for the private key.")] = None,
    public_key: Annotated[str | None, typer.Option("--public-key", help="add: what keygen printed.")] = None,
    key_id: Annotated[str | None, typer.Option("--key-id", help="revoke: only this key.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="add: the key's end, ISO 8601.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="revoke: why.")] = "",
    file: Annotated[
        Path | None,
        typer.Option("--file", help="The operators' file of whoever applies.", envvar="FALLOW_OPERATORS_FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make, register, list and revoke the keys that approvals are signed with."""
    if action is OperatorAction.keygen:
        _keygen(key, as_json)
        return
    from fallow.acting.configured_files import read_register
    from fallow.acting.signatures import add_operator, operators_text, revoke_operator

    if file is None:
        raise UsageError("no operators' file is named", hint="pass --file or set FALLOW_OPERATORS_FILE")
    now = wall_clock()
    operators = read_register(file) if file.exists() or action is not OperatorAction.add else ()
    if action is OperatorAction.add:
        if not name or not public_key:
            raise UsageError("add needs --name and --public-key", hint="fallow operator keygen prints the key")
        until = instant_or_none(expires, "--expires")
        operators = add_operator(operators, name, public_key, now=now, expires_at=until)
        write_register(file, operators_text(operators))
    elif action is OperatorAction.revoke:
        if not name and not key_id:
            raise UsageError("revoke needs --name or --key-id", hint="fallow operator list shows both")
        operators = revoke_operator(operators, key_id or name or "", now=now, why=reason)
        write_register(file, operators_text(operators))
    if as_json:
        emit({"count": len(operators), "operators": [{"key_id": item.key_id, **item.to_json()} for item in operators]})
        return
    rows = [
        (
            item.name,
            item.key_id,
            "" if item.added_at is None else iso(item.added_at),
            "" if item.expires_at is None else iso(item.expires_at),
            "" if item.revoked_at is None else f"{iso(item.revoked_at)} {item.revoked_why}".strip(),
        )
        for item in operators
    ]
    table(counted(len(rows), "key"), ("operator", "key", "added", "expires", "revoked"), rows)


def _keygen(key: Path | None, as_json: bool) -> None:
    from fallow.acting.signatures import encrypted, key_id_of, make_key, public_text

    if key is None:
        raise UsageError("keygen needs --key", hint="a new file, which stays with the operator")
    made = make_key()
    write_key(key, encrypted(made, passphrase(f"a passphrase for {key}", confirm=True)))
    public, name = public_text(made), key_id_of(made.public_key().public_bytes_raw())
    note(f"the private key is in {key}, encrypted; it stays with you and is never handed to anybody")
    if as_json:
        emit({"key_id": name, "public_key": public, "file": str(key)})
    else:
        say(f"key {name}")
        say(f"public key {public}")
        say("whoever applies registers it: fallow operator add --name YOU --public-key " + public)
