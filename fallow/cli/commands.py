"""Which commands there are: one table, so that help, docs and tests agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import typer

from fallow.cli import (
    certificate,
    conformance,
    contracts,
    drift,
    effect,
    forecast,
    holds,
    importance,
    operations,
    operators,
    policy,
    rater_report,
    reflection,
    reinforcement,
    repair,
    retention,
    review,
    serve,
)

#: Every command, by what one is doing.
GROUPS: Final[Mapping[str, tuple[tuple[str, Callable[..., Any]], ...]]] = {
    "Decide": (
        ("retention-plan", retention.retention_plan),
        ("review", review.review),
        ("approve", retention.approve),
        ("reject", retention.reject),
        ("retention-apply", retention.retention_apply),
        ("unsuppress", retention.unsuppress),
        ("restore", retention.restore),
        ("hold", holds.hold),
    ),
    "Look": (
        ("plans", retention.plans),
        ("show", retention.show),
        ("suppressed", retention.suppressed),
        ("explain", retention.explain),
        ("forecast", forecast.forecast),
        ("effect", effect.effect),
        ("policy", policy.policy),
        ("rater-report", rater_report.rater_report),
    ),
    "Rate and reflect": (
        ("backfill-importance", importance.backfill_importance),
        ("reflect", reflection.reflect),
        ("touch", reinforcement.touch),
        ("purge-cache", reinforcement.purge_cache),
    ),
    "Trust": (
        ("operator", operators.operator),
        ("certificate", certificate.certificate),
        ("verify", certificate.verify),
        ("drift", drift.drift),
        ("repair-events", repair.repair_events),
        ("contracts", contracts.contracts),
        ("parity", contracts.parity),
        ("conformance", conformance.conformance),
    ),
    "Run": (
        ("demo", operations.demo),
        ("settings", operations.settings),
        ("doctor", operations.doctor),
        ("serve", serve.serve),
    ),
}


def register(app: typer.Typer) -> None:
    """Puts every command on the app, once."""
    if app.registered_commands:
        return
    for names in GROUPS.values():
        for name, function in names:
            app.command(name)(function)
