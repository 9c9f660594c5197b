"""Proof of what was done: certificates, and verifying them offline (SPEC §16)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fallow.cli.app import Json, KeyFile, Store, emit, note, open_store, say
from fallow.model.errors import UsageError
from fallow.model.times import wall_clock


def certificate(
    plan_id: Annotated[str, typer.Argument(help="forget-plan-…, as fallow plans lists it.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="The rows as CSV instead of the certificate.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write to this new file instead of stdout.")] = None,
    key: KeyFile = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Certify what became of every record of a decided plan: one file that fallow verify checks offline."""
    from fallow.cli.operators import read_key
    from fallow.plans.storage import full_plan_id
    from fallow.usecases.certificate import certificate_csv, certificate_text, certify

    if as_csv and as_json:
        raise UsageError("--csv and --json are both given", hint="choose one")
    private = None if key is None else read_key(key)
    with open_store(store) as provider:
        made = certify(provider, full_plan_id(provider, plan_id), now=wall_clock(), key=private)
    text = certificate_csv(made) if as_csv else certificate_text(made)
    if out is None:
        sys.stdout.write(text)
    else:
        try:
            with out.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}", hint="name a new file") from None
        if as_json:
            sys.stdout.write(text)
    note(f"{made['plan_id']}: {len(made['rows'])} records, Merkle root {made['merkle_root']}")


def verify(
    file: Annotated[Path, typer.Argument(help="A certificate, or a plan as retention-plan --json printed it.")],
    operators: Annotated[
        Path | None, typer.Option("--operators", help="Who may sign, to say whose signatures these are.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Verify a certificate or a plan from its file alone: any byte that was changed is found."""
    from fallow.acting.configured_files import read_register
    from fallow.usecases.certificate import verify as verify_file

    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="name a file") from None
    found = verify_file(data, () if operators is None else read_register(operators))
    if as_json:
        emit(found.to_json())
    else:
        say(f"{found.kind} {found.plan_id or ''}: {'whole' if found.ok else 'NOT to be trusted'}")
        for line in found.problems:
            say(f"  wrong: {line}")
        for line in found.notes:
            say(f"  {line}")
    return 0 if found.ok else 1
