"""Reading Prefect variables over HTTP, without importing Prefect (SPEC §6.1): settings, and the stop switch."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

NAME: Final = "fallow_settings"
_TIMEOUT_SECONDS: Final = 3.0


def read_variable(api_url: str, auth: str | None) -> tuple[Mapping[str, Any], str]:
    """The settings and, where they could not be used, why; a variable that is not there is empty."""
    value, problem = read_value(api_url, auth, NAME)
    if problem or value is None:
        return {}, problem
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}, "its value is not JSON"
    return (value, "") if isinstance(value, dict) else ({}, "its value is not an object")


def read_value(api_url: str, auth: str | None, name: str) -> tuple[Any, str]:
    """A variable's value, None where it is not there, and, where it could not be read, why."""
    if not api_url.startswith(("http://", "https://")):
        return None, "PREFECT_API_URL is not an http address"
    request = Request(f"{api_url.rstrip('/')}/variables/name/{name}")  # noqa: S310  # scheme checked above
    if auth:
        request.add_header("Authorization", "Basic " + base64.b64encode(auth.encode()).decode())
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            return json.loads(answer.read())["value"], ""
    except HTTPError as error:
        return None, "" if error.code == 404 else f"the server answered {error.code}"
    except (URLError, TimeoutError, OSError):
        return None, "the server could not be reached"
    except (ValueError, KeyError, TypeError):
        return None, "the server's answer was not understood"
