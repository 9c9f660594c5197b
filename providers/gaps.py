"""Where a provider of ours does less than the kit asks, with the reason and the error that shows it.

A gap belongs to the store, not to our taste: what its layout or its interface cannot do. Each is strict:
once the check passes, the run fails until the gap is taken out. The support matrix in the docs is made
from the kit's results and these reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fallow.port.scratch import Gap, NotHeldError

#: By capability kind, then by check.
GAPS: Final[Mapping[str, Mapping[str, Gap]]] = {
    "filesystem": {},
    "mongodb": {},
    "oracle": {
        "ids_are_kept": Gap(
            "conversation rows go by a RAW(16) key: their ids are UUIDs and nothing else", NotHeldError
        ),
        "patch_keeps_unknown_fields": Gap(
            "conversation rows have no column for fields unknown to the schema", NotHeldError
        ),
        "a_condition_on_nested_values_lands": Gap("a conversation's content is a CLOB of text", NotHeldError),
        "absent_is_not_null": Gap(
            "conversation rows have no column for a pin, and a NULL is an absent field", NotHeldError
        ),
        "true_is_not_one": Gap("columns are typed, and conversation rows have none for a pin", NotHeldError),
        "a_list_is_not_its_element": Gap("conversation rows have no column for tags", NotHeldError),
        "every_spelling_is_read": Gap("columns are typed: a field has one spelling", NotHeldError),
        "every_spelling_is_read_in_entities": Gap("columns are typed: a field has one spelling", NotHeldError),
        "bad_values_hide_no_record": Gap("columns are typed: no text stands for a time or a number", NotHeldError),
        "untidy_recalls_count": Gap("columns are typed: a count is a whole NUMBER", NotHeldError),
    },
    "notion": {},
}

__all__ = ["GAPS", "Gap", "NotHeldError"]
