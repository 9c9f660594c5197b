"""Great Expectations' answer beside ours: who agrees, who does not, and what could not be answered (DESIGN §7)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fallow.data_contracts.checking import ContractReport
from fallow.data_contracts.great_expectations_suite import RAW, read_result, write_job

_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """What GX counted, held against the report it was asked about.

    Attributes:
        agreeing: rules that both counted alike.
        differing: by rule, our count and its count.
        errors: by rule (or table), why there is no answer: never a pass, never a failed rule.
        raw: GX's own answer as JSON text; counts only.
    """

    agreeing: int
    differing: dict[str, tuple[int, int]]
    errors: dict[str, str]
    raw: str

    @property
    def settled(self) -> bool:
        """Whether every rule was answered, and alike."""
        return not self.differing and not self.errors

    @property
    def raw_sha256(self) -> str:
        """Names the raw answer where it is stored apart."""
        return hashlib.sha256(self.raw.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts; without the raw answer."""
        return {
            "agreeing": self.agreeing,
            "differing": {name: {"polars": ours, "gx": its} for name, (ours, its) in self.differing.items()},
            "errors": dict(self.errors),
            "raw_sha256": self.raw_sha256,
        }


def ask_great_expectations(report: ContractReport, *, as_of: int) -> SecondOpinion:
    """Runs GX on a report's frames, in its own process, without its usage statistics.

    The report must have kept its frames. Whatever goes wrong there is in ``errors``; nothing is raised for it.
    """
    with tempfile.TemporaryDirectory(prefix="fallow-contracts-") as name:
        folder = Path(name)
        write_job(folder, report.frames, store_kind=report.store_kind, as_of=as_of)
        command = [sys.executable, "-m", "fallow.data_contracts.great_expectations_suite", name]
        environ = {**os.environ, "GX_ANALYTICS_ENABLED": "false"}
        try:
            done = subprocess.run(  # noqa: S603 (our own interpreter and module)
                command,
                env=environ,
                cwd=Path(__file__).resolve().parents[1],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
            answers = read_result(folder)
            raw = (folder / RAW).read_text(encoding="utf-8")
        except subprocess.TimeoutExpired:
            return SecondOpinion(0, {}, {"*": f"no answer within {_SECONDS} s"}, "")
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
            return SecondOpinion(0, {}, {"*": f"Great Expectations ended with code {done.returncode}: {last}"}, "")
    return compare(report, answers, raw)


def compare(report: ContractReport, answers: dict[str, dict[str, Any]], raw: str) -> SecondOpinion:
    """Holds GX's counts against ours, rule by rule; a rule that only one of both answered is an error."""
    agreeing, differing, errors = 0, {}, {}
    ours = {(item.rule.table, item.rule.id): item for item in report.findings}
    for (table, rule), item in ours.items():
        answer = answers.get(table, {})
        its = answer.get(rule) or answer.get("*") or {"error": "not answered"}
        if "error" in its:
            errors[item.name] = str(its["error"])
        elif int(its["failures"]) != item.failures:
            differing[item.name] = (item.failures, int(its["failures"]))
        else:
            agreeing += 1
    for table, answer in answers.items():
        for rule in answer:
            if rule != "*" and (table, rule) not in ours:
                errors[f"{table}.{rule}"] = "answered by Great Expectations alone"
    return SecondOpinion(agreeing, differing, errors, raw)
