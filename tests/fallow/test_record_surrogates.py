"""Text that JSON can say and nothing else can hold (SPEC §1.2): it must not stop a run."""

import json

from fallow.model.record import frame_of, read_record


def test_lone_surrogates_in_text_do_not_break_frames():
    row = json.loads(
        r'{"content": "a\ud800b", "role": "\udfff", "importance_source": "x\udc00", "suppressed_by": "\ud83d"}'
    )
    record = read_record(row, "summaries", "s1")
    assert (record.text, record.role, record.importance_source, record.suppressed_by) == ("a�b", "�", "x�", "�")
    assert frame_of([record], ["text", "role", "importance_source", "suppressed_by"]).height == 1


def test_whole_pairs_stay():
    assert read_record({"content": "😀"}, "summaries", "s1").text == "😀"
