"""What can go wrong, in the operator's words (SPEC §14).

Every error a user can cause is a :class:`FallowError`: a stable ``code``, a message that says what was
wrong and where, and a ``hint`` that says what to do next. No memory text and no secret ever enters one.
Whether a scheduler should try again follows from the class: :class:`TransientError` may pass by itself,
everything else will not.
"""

from __future__ import annotations


class FallowError(Exception):
    """Base of all errors meant for a person: ``message`` (what, where) and ``hint`` (what next)."""

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class TransientError(FallowError):
    """May succeed when tried again: a store that is busy, slow or briefly away."""

    code = "transient"


class UsageError(FallowError):
    """The command or call was malformed; exit code 2."""

    code = "usage"
    exit_code = 2


class SettingError(UsageError):
    """A setting has a value that cannot be used; exit code 1, for it may come from afar."""

    code = "bad_setting"
    exit_code = 1


class StoreNotFoundError(FallowError):
    """There is no store at that address."""

    code = "store_not_found"


class StoreUnreadableError(FallowError):
    """A listing failed or was cut short; there is no plan over part of a scope (SPEC §1.4)."""

    code = "store_unreadable"


class StoreUnwritableError(FallowError):
    """The store refuses writes: read-only, full, or not permitted."""

    code = "store_unwritable"


class StoreBusyError(TransientError):
    """The store is locked or rate-limited and did not become free in time."""

    code = "store_busy"


class ProviderMissingError(FallowError):
    """No provider serves that kind of store, or its extra is not installed."""

    code = "provider_missing"


class RecordNotFoundError(FallowError):
    """No such record in the store."""

    code = "record_not_found"


class PlanNotFoundError(FallowError):
    """No plan with that id is stored here."""

    code = "plan_not_found"


class PlanAlteredError(FallowError):
    """The stored plan does not match its own hashes."""

    code = "plan_altered"


class OtherStoreError(FallowError):
    """The plan was made for another store than the one it is applied to."""

    code = "other_store"


class ApprovalRefusedError(FallowError):
    """The decision was refused and nothing was written: who, what or how many did not fit (SPEC §7.2)."""

    code = "approval_refused"


class SignatureRefusedError(ApprovalRefusedError):
    """A signed approval that does not hold; ``reason`` is one word for why (SPEC §7.4)."""

    code = "signature_refused"

    def __init__(self, message: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class OperatorError(FallowError):
    """An operator's key or the register of operators cannot be used."""

    code = "operator"


class StoppedError(FallowError):
    """The stop switch is on: what is written is journalled, the rest waits; exit code 6."""

    code = "stopped"
    exit_code = 6


class HoldError(FallowError):
    """A hold that names nothing, nobody or no reason, or is not there."""

    code = "hold"


class PlanStateError(FallowError):
    """The plan is in a state that does not allow this: expired, superseded, rejected, already decided."""

    code = "plan_state"


class ContractBreachError(FallowError):
    """What holds of the store as a whole no longer holds: no scope is planned or applied (SPEC §13); exit code 4."""

    code = "contract_breach"
    exit_code = 4


class PlanExpiredError(PlanStateError):
    """The plan's approval window has passed, or its records have moved on too far; exit code 3."""

    code = "plan_expired"
    exit_code = 3


class ModelRefusedError(FallowError):
    """The model's endpoint refuses everything: a wrong key, an unknown model, no credit left."""

    code = "model_refused"


class ModelRequestError(FallowError):
    """The endpoint refuses this one request for what is in it: too long, or held back by a filter."""

    code = "model_request"


class ModelUnavailableError(TransientError):
    """The endpoint did not answer in time, or only with faults, however often it was asked."""

    code = "model_unavailable"


class ModelAnswerError(TransientError):
    """The model's answer was cut off or empty."""

    code = "model_answer"
