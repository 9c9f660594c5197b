"""The approval form, and reading its answer (SPEC §7.1, DESIGN §6)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fallow.tasks.asking import FormText
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from pydantic import Field, ValidationError, create_model

from fallow.model.errors import ApprovalRefusedError

#: Forms of a run are suspended under ``approval-1``, ``approval-2``, …
KEY: Final = "approval"
#: So many refused answers end a run as Rejected (SPEC §7.2).
MAX_ANSWERS: Final = 3


def form_of(text: FormText) -> type[RunInput]:
    """The form of one plan. Its id is a constant of the schema: the server refuses an answer about another.

    Fields are only ever added, with defaults: the server checks an answer against the form that was stored
    when the run was suspended.
    """
    refused = f"NOT TAKEN: {_ended(text.refusal)} Answer again. " if text.refusal else ""
    page = f" Page: {text.page}" if text.page else ""
    fields: dict[str, Any] = {
        "decision": Annotated[Literal["approve", "reject"], Field(description=f"{refused}{text.asked}")],
        "approved_by": Annotated[
            str,
            Field(
                min_length=1,
                max_length=240,
                pattern=r"\S",
                description=f"Your name, as FALLOW_APPROVERS has it. Could be lost: {text.at_stake}{page}",
            ),
        ],
        "count": Annotated[
            int,
            Field(ge=0, description=f"Repeat the number of records planned, {text.planned}, before leaving any out."),
        ],
        "plan_id": Annotated[
            str,
            Field(
                description="the plan that this answer is about",
                json_schema_extra={"default": text.plan_id, "const": text.plan_id},
            ),
        ],
        "reason": (
            Annotated[str, Field(max_length=2000, description="why, for the journal; may stay empty")],
            "",
        ),
        "leave_out": (
            Annotated[
                list[str],
                Field(default_factory=list, description="ids of planned records to spare, as ID or TYPE:ID"),
            ],
            ...,
        ),
        "signature": (
            Annotated[
                str,
                Field(
                    max_length=1_000_000,
                    description="your signed approval, as fallow approve --signature-only printed it; "
                    "empty where a name is enough",
                ),
            ],
            "",
        ),
    }
    form: type[RunInput] = create_model("Approval", __base__=RunInput, **fields)
    form._description = text.description
    return form


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def answer_to(text: FormText, attempt: int, timeout: int) -> dict[str, Any]:
    """Suspends the run until its form is answered; in the resumed run, the answer.

    Args:
        attempt: which of the run's forms this is, from 1.
        timeout: seconds after which Prefect gives the run up.

    Raises:
        ApprovalRefusedError: the run was resumed without an answer that this form can hold.
    """
    try:
        answer = suspend_flow_run(wait_for_input=form_of(text), key=f"{KEY}-{attempt}", timeout=timeout)
    except ValidationError:
        raise ApprovalRefusedError("the run was resumed without a complete answer", hint="fill the form") from None
    return answer.model_dump()
