"""What a flow needs to know of its own run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError

from fallow.model.arguments import instant
from fallow.model.errors import FallowError
from fallow.model.times import iso, wall_clock


@dataclass(frozen=True)
class ThisRun:
    """The flow run that this code runs in.

    ``as_of`` is its scheduled start (SPEC §15), microseconds since the epoch: a run that starts late, or is
    suspended and resumed, still decides for the instant it was meant for.
    """

    id: str
    deployment_id: UUID | None
    as_of: int
    parameters: dict[str, object]
    name: str = ""

    @property
    def logger(self) -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
        """The run's own logger."""
        return get_run_logger()

    def title(self, verb: str) -> str:
        """A name for the run: what, for whom; a run that was named after its plan keeps that name when it goes on."""
        if self.name.startswith("plan-retention: "):
            return self.name
        what = next(
            (str(self.parameters[name]) for name in ("plan_id", "agent_id", "user_id") if self.parameters.get(name)),
            "unowned records" if self.parameters.get("unowned") else "",
        )
        return f"{verb} {what}".strip() + f" {iso(self.as_of)[:16]}"

    def must_be_deployed(self) -> None:
        """Refuses to ask where nobody could answer.

        Raises:
            FallowError: Prefect suspends runs of deployments only.
        """
        if self.deployment_id is None:
            raise FallowError(
                "this run belongs to no deployment, so it cannot wait for an answer",
                hint="run it as prefect deployment run plan-retention/nightly, or plan with fallow retention-plan",
            )


def this_run() -> ThisRun:
    """The current flow run.

    Raises:
        MissingContextError: called outside a flow run.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise MissingContextError("there is no flow run here")
    run = context.flow_run
    start = run.expected_start_time
    return ThisRun(
        str(run.id),
        run.deployment_id,
        wall_clock() if start is None else instant(start.isoformat()),
        dict(context.parameters or {}),
        run.name,
    )
