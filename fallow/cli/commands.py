"""Which commands there are: one table, so that help, docs and tests agree."""

from __future__ import annotations

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


def register(app: typer.Typer) -> None:
    """Puts every command on the app, once."""
    if app.registered_commands:
        return
    for name, function in (
        ("demo", operations.demo),
        ("retention-plan", retention.retention_plan),
        ("review", review.review),
        ("approve", retention.approve),
        ("reject", retention.reject),
        ("retention-apply", retention.retention_apply),
        ("plans", retention.plans),
        ("show", retention.show),
        ("suppressed", retention.suppressed),
        ("unsuppress", retention.unsuppress),
        ("restore", retention.restore),
        ("explain", retention.explain),
        ("backfill-importance", importance.backfill_importance),
        ("reflect", reflection.reflect),
        ("touch", reinforcement.touch),
        ("purge-cache", reinforcement.purge_cache),
        ("operator", operators.operator),
        ("hold", holds.hold),
        ("certificate", certificate.certificate),
        ("verify", certificate.verify),
        ("drift", drift.drift),
        ("repair-events", repair.repair_events),
        ("effect", effect.effect),
        ("rater-report", rater_report.rater_report),
        ("forecast", forecast.forecast),
        ("policy", policy.policy),
        ("settings", operations.settings),
        ("doctor", operations.doctor),
        ("contracts", contracts.contracts),
        ("parity", contracts.parity),
        ("conformance", conformance.conformance),
        ("serve", serve.serve),
    ):
        app.command(name)(function)
