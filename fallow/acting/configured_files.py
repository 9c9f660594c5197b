"""Files that settings name: the register of operators, the stop switch, questions. The core reads no others.

What guards approvals stands in files of whoever applies, outside the store and outside Prefect.
"""

from __future__ import annotations

from pathlib import Path

from fallow.acting.signatures import Operator, merged, parse_operators
from fallow.model.errors import OperatorError, UsageError
from fallow.model.settings import ApprovalConfig

#: So much of a stop switch's file is shown as its reason.
_REASON: int = 200


def read_register(file: Path | str) -> tuple[Operator, ...]:
    """The operators in a file.

    Raises:
        OperatorError: the file cannot be read, or is no register. There is no half of one.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(
            f"the operators file {file} cannot be read: {type(error).__name__}",
            hint="FALLOW_OPERATORS_FILE names it; fallow operator add makes it",
        ) from None
    return parse_operators(text, f"the operators file {file}")


def registered_operators(approval: ApprovalConfig) -> tuple[Operator, ...]:
    """Everybody who is registered to sign approvals: in the file and in the environment's text.

    Raises:
        OperatorError: a source that is named cannot be used, or the two contradict each other.
    """
    file, inline = approval.operators_file.strip(), approval.operators.strip()
    return merged(read_register(file) if file else (), parse_operators(inline, "FALLOW_OPERATORS") if inline else ())


def stop_file_says(file: str) -> str | None:
    """Why everything is to stop: the text of the stop switch's file, where there is one; None: go on.

    A file that cannot be read says stop as well.
    """
    if not file.strip():
        return None
    try:
        text = Path(file.strip()).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"the stop file cannot be read: {type(error).__name__}"
    return " ".join(text.split())[:_REASON] or "the stop file is there"


def lines_of_questions(file: str) -> list[str]:
    """The lines of the file of past questions (``risk.questions_file``).

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return Path(file.strip()).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the file of questions cannot be read: {type(error).__name__}", hint="FALLOW_RISK_QUESTIONS_FILE names it"
        ) from None
