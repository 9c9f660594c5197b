"""The command that runs the conformance kit beside an operator's own store (SPEC §12, §16)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fallow.cli.app import Json, Store, emit, say, table
from fallow.model.errors import UsageError


def conformance(
    store: Store = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this check; may be repeated.")] = None,
    as_json: Json = False,
) -> int:
    """Run the conformance kit in a scratch store beside yours, which stays as it is."""
    from fallow.port.parts import part
    from fallow.port.registry import scratch_backend

    kit = part("fallow.kits", "conformance")
    if not store or not store.strip():
        raise UsageError("no store is named", hint="pass --store or set FALLOW_STORE")
    unknown = [name for name in only or () if name not in kit.CHECKS]
    if unknown:
        raise UsageError(f"there is no check '{unknown[0][:80]}'", hint="fallow conformance --json lists them")
    backend = scratch_backend(store)
    results: list[dict[str, Any]] = []
    for result in kit.run(backend, only):
        results.append(
            {
                "check": result.check.name,
                "holds": result.check.holds,
                "room": result.check.room,
                "verdict": result.verdict,
                "detail": result.detail,
            }
        )
        if not as_json and result.verdict != "holds":
            say(f"{result.verdict}: {result.check.name}: {result.detail}")
    bad = sum(item["verdict"] in {"fails", "gap closed"} for item in results)
    if as_json:
        emit({"kind": backend.name, "checks": results, "failed": bad, "state": "Fails" if bad else "Conforms"})
    else:
        counts: dict[str, int] = {}
        for item in results:
            counts[item["verdict"]] = counts.get(item["verdict"], 0) + 1
        rows = [(verdict, str(number)) for verdict, number in sorted(counts.items())]
        table(f"Conformance of a {backend.name} store", ("verdict", "checks"), rows, right=("checks",))
    return 1 if bad else 0
