"""Waking the flow run that waits for a decision, over HTTP, without importing Prefect (SPEC §7, DESIGN §6).

The decision in the store is what counts. A run that cannot be reached learns of it from expire-plans.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

_TIMEOUT_SECONDS: Final = 5.0
#: The server's SQLite may be locked for a moment: it answers 503.
_TRIES: Final = 4


def wake_run(api_url: str, auth: str | None, flow_run_id: str) -> str:
    """Resumes a suspended flow run, whose plan was decided; what came of it, in a few words.

    A run that was resumed or ended meanwhile is left alone: it reads the decision from the store.
    """
    if not api_url.startswith(("http://", "https://")):
        return "PREFECT_API_URL is not an http address"
    base = f"{api_url.rstrip('/')}/flow_runs/{flow_run_id}"
    problem = ""
    for attempt in range(_TRIES):
        try:
            state = _call(base, auth)["state"]
            if state["type"] != "PAUSED":
                return f"the run that asked is {state['name']}"
            wanted = {"type": "SCHEDULED", "name": "Resuming", "message": "decided on the command line"}
            _call(f"{base}/set_state", auth, {"state": wanted, "force": False})
            if _call(base, auth)["state"]["type"] != "PAUSED":
                return "the run that asked goes on"
            problem = "the server kept it suspended"
        except HTTPError as error:
            if error.code == 404:
                return "the run that asked is gone"
            problem = f"the server answered {error.code}"
        except (URLError, TimeoutError, OSError):
            problem = "the server could not be reached"
        except (ValueError, KeyError, TypeError):
            problem = "the server's answer was not understood"
        if attempt + 1 < _TRIES:
            time.sleep(0.5 * 2**attempt)
    return f"the run that asked was not resumed ({problem}); expire-plans will see to it"


def _call(address: str, auth: str | None, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(address, data=data, headers={"Content-Type": "application/json"})  # noqa: S310  # scheme checked
    if auth:
        request.add_header("Authorization", "Basic " + base64.b64encode(auth.encode()).decode())
    with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
        return json.loads(answer.read())
