"""What ``fallow doctor`` asks of the Prefect server that PREFECT_API_URL names, over HTTP, without importing Prefect.

A server that asks nobody who calls, or that answers the pages of other origins, lets any page open in the
operator's browser resume a waiting run (DESIGN §6). So doctor calls it as such a page would, and looks.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

State = Literal["ok", "info", "warning", "error"]
Found = tuple[str, State, str]

_TIMEOUT_SECONDS: Final = 5.0
_ELSEWHERE: Final = "http://another-page.invalid"
#: What entry points began with before there was one import name; no worker finds such a module any more.
_OLD_ENTRY_POINT: Final = "flows."
#: Clocks further apart than this make expiries and schedules surprising.
_SECONDS_APART: Final = 60


def look_at_server(address: str, auth: str | None, deployed: tuple[str, ...]) -> list[Found]:
    """Checks of a Prefect server: reachable, its version, its clock, who may call it, what is deployed, who works.

    Args:
        address: PREFECT_API_URL.
        auth: PREFECT_API_AUTH_STRING.
        deployed: deployments that ought to be there, as flow/deployment.
    """
    base = address.rstrip("/")
    if not base.startswith(("http://", "https://")):
        return [("prefect server", "error", "PREFECT_API_URL is not an http address")]
    try:
        version, headers = _ask(f"{base}/admin/version", auth)
    except HTTPError as error:
        if error.code in {401, 403}:
            return [("prefect server", "error", "it asks who calls: set PREFECT_API_AUTH_STRING")]
        return [("prefect server", "error", f"it answered {error.code}")]
    except (URLError, TimeoutError, OSError, ValueError):
        return [("prefect server", "error", "it cannot be reached at PREFECT_API_URL")]
    found: list[Found] = [("prefect server", "ok", f"version {version}")]
    found += _clock(headers.get("Date"))
    found += _callers(base)
    try:
        found += _deployed(base, auth, deployed)
        found += _workers(base, auth)
    except (URLError, TimeoutError, OSError, ValueError, TypeError, KeyError):
        found.append(("prefect server", "warning", "what is deployed there could not be read"))
    return found


def _clock(date: str | None) -> list[Found]:
    if date is None:
        return []
    apart = abs(parsedate_to_datetime(date).timestamp() - time.time())
    if apart <= _SECONDS_APART:
        return [("prefect clock", "ok", "agrees with this one")]
    return [("prefect clock", "warning", f"is {apart:.0f} seconds from this one")]


def _callers(base: str) -> list[Found]:
    """Calls without credentials, as a page of another origin."""
    try:
        _, headers = _ask(f"{base}/flows/filter", None, body={"limit": 1}, origin=_ELSEWHERE)
        open_to_all = True
    except HTTPError as error:
        headers, open_to_all = error.headers, False
    except (URLError, TimeoutError, OSError, ValueError):
        return []
    found: list[Found] = []
    if open_to_all:
        found.append(("prefect auth", "warning", "asks nobody who calls: set PREFECT_SERVER_API_AUTH_STRING there"))
    else:
        found.append(("prefect auth", "ok", "asks who calls"))
    if headers.get("Access-Control-Allow-Origin") in {"*", _ELSEWHERE}:
        hint = "answers the pages of any origin: set PREFECT_SERVER_CORS_ALLOWED_ORIGINS there to the UI's address"
        found.append(("prefect origins", "warning", hint))
    else:
        found.append(("prefect origins", "ok", "answers no page of another origin"))
    return found


def _deployed(base: str, auth: str | None, names: tuple[str, ...]) -> list[Found]:
    missing, paused, old = [], [], []
    for name in names:
        try:
            answer, _ = _ask(f"{base}/deployments/name/{name}", auth)
        except HTTPError as error:
            if error.code != 404:
                raise
            missing.append(name)
        else:
            paused += [name] if answer.get("paused") else []
            old += [name] if str(answer.get("entrypoint")).startswith(_OLD_ENTRY_POINT) else []
    hint = "prefect deploy --all --prefect-file deployments/prefect.yaml"
    if old:
        return [("deployments", "error", f"flows.… is fallow.flows.… now: {', '.join(old)} cannot start; {hint}")]
    if missing:
        return [("deployments", "warning", f"not there: {', '.join(missing)}; {hint}")]
    return [("deployments", "ok", f"all are there{'; paused: ' + ', '.join(paused) if paused else ''}")]


def _workers(base: str, auth: str | None) -> list[Found]:
    try:
        answer, _ = _ask(f"{base}/work_pools/fallow/workers/filter", auth, body={})
    except HTTPError as error:
        if error.code == 404:
            return [
                ("worker", "warning", "there is no work pool fallow: prefect work-pool create fallow --type process")
            ]
        raise
    online = [str(item["name"]) for item in answer if str(item.get("status", "")).upper() == "ONLINE"]
    if online:
        return [("worker", "ok", f"{len(online)} online")]
    return [("worker", "warning", "none is online: prefect worker start --pool fallow")]


def _ask(
    address: str, auth: str | None, body: Mapping[str, Any] | None = None, origin: str | None = None
) -> tuple[Any, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(address, data=data, headers={"Content-Type": "application/json"})  # noqa: S310  # scheme checked
    if auth:
        request.add_header("Authorization", "Basic " + base64.b64encode(auth.encode()).decode())
    if origin:
        request.add_header("Origin", origin)
    with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
        return json.loads(answer.read()), answer.headers
