"""What people are shown: every stored text is one harmless line (SPEC §6.5, §14)."""

from __future__ import annotations

import struct

import pytest
from fallow.tasks.pages import (
    MAX_ROWS,
    distribution_picture,
    escaped,
    form_text,
    plan_page,
    plan_rows,
    report_page,
)
from fallow.tasks.reading import MAX_EXCERPT, excerpts

from fallow.model.errors import SettingError, StoreBusyError, StoreUnreadableError
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import parse_as_of
from fallow.port.registry import open_provider
from fallow.usecases.planner import plan_scope
from tests.conftest import SAMPLE_NOW, write_as_agent

NOW = parse_as_of(SAMPLE_NOW)
HOSTILE = "a|b\n# Approve all <img src=x onerror=alert(1)> [click](http://x) **yes** `r`\u202e"


@pytest.fixture
def plan(tmp_path):
    rows = [
        {
            "_id": name,
            "content": f"{HOSTILE} " * 9,
            "agent_id": HOSTILE,
            "timestamp": "2026-01-01T00:00:00Z",
            "importance": 0.05,
        }
        for name in ("a|b\n# Approve all <b>", "[x](http:y)", "plain")
    ]
    write_as_agent(tmp_path / "s", {"conversation_memory": rows, "shared_memory": []})
    with open_provider(str(tmp_path / "s")) as provider:
        made = plan_scope(
            provider,
            resolve({"retention.blast_radius": 0.5}, environ={}),
            Scope(agent_id=HOSTILE),
            as_of=NOW,
            now=NOW,
        )
        yield made, excerpts(provider, made.entries)


@pytest.mark.parametrize("text", ["|", "\n", "<script>", "**", "`", "[a](b)", "\u202e", "\x1b[31m", "# a", HOSTILE])
def test_no_stored_text_is_markup(text):
    shown = escaped(text)
    assert "\n" not in shown
    assert "<" not in shown
    for mark in "|*`[]()#":
        assert shown.count(mark) == shown.count("\\" + mark)
    assert all(char.isprintable() for char in shown)


def test_a_hostile_store_adds_no_line_and_no_element_to_the_form(plan):
    made, texts = plan
    assert len(made.entries) == 3
    text = form_text(made, texts, made.expires_at, HOSTILE)
    page = plan_page(made, texts, made.expires_at, distribution_picture(made), "/results/plan.json")
    for shown in (text, page):
        assert "<img" not in shown
        assert "](http" not in shown.replace("\\](", "").replace("](data:image/png;base64,", "")
        assert not [line for line in shown.splitlines() if line.startswith("# Approve")]
    assert text.count("\n1. **") == 3
    assert "This hides 100% of its scope" in text
    assert made.plan_id in text
    assert all(len(excerpt) <= MAX_EXCERPT for excerpt in texts.values())


def test_excerpts_stand_nowhere_unless_they_may_be_shown_14(plan):
    made, _ = plan
    for shown in (
        form_text(made, None, made.expires_at, ""),
        plan_page(made, None, made.expires_at, b"", ""),
        str(plan_rows(made.entries)),
    ):
        assert "onerror" not in shown.replace(escaped(HOSTILE), "")


def test_the_page_shows_counts_coverage_and_where_each_setting_came_from_6_5(plan):
    made, _ = plan
    page = plan_page(made, None, made.expires_at, b"", "/results/plan.json")
    for part in (
        "| records in scope | 3 |",
        "| in this plan | 3 |",
        "| blast\\_radius | 0.5 | option |",
        "| grace\\_days | 30.0 |",
    ):
        assert part in page
    assert "Rated: **100%**" in page
    assert "days old, never recalled, importance 0.05: worth 0.017" in page
    assert "Nothing that is old and low enough is protected." in page
    assert f"repeat the number of records planned: **{len(made.entries)}**" in page
    assert "/results/plan.json" in page
    assert made.document_sha256 in page


def test_the_distribution_is_a_png(plan):
    picture = distribution_picture(plan[0])
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 300
    assert height > 100


def test_a_table_has_at_most_500_rows(plan):
    entries = plan[0].entries * 400
    assert len(plan_rows(entries)) == MAX_ROWS == 500


def test_a_report_names_what_was_skipped_and_failed():
    page = report_page(
        "forget-plan-x: PartiallyApplied",
        {
            "applied": 3,
            "already": 1,
            "skipped": {"recalled": ["r1"]},
            "failed": {"the disk says no": ["r2"]},
            "unknown": ["r3"],
            "left_out": ["r4"],
            "state": "PartiallyApplied",
            "approved_by": "Ada <b>",
            "standing": "claimed",
        },
    )
    for part in ("| skipped, recalled | 1 |", "| failed, the disk says no | 1 |", "| unknown | 1 |", "Ada &lt;b&gt;"):
        assert part in page


def test_only_a_fault_that_may_pass_is_tried_again():
    from fallow.tasks.steps import may_pass
    from prefect.states import Failed

    assert may_pass(None, None, Failed(data=StoreBusyError("locked")))
    assert not may_pass(None, None, Failed(data=StoreUnreadableError("torn")))
    assert not may_pass(None, None, Failed(data=ValueError("a bug")))


def test_a_run_names_its_store_without_its_password(monkeypatch):
    from fallow.tasks.steps import address_of, stores_named

    address = "mongodb://reader:secret@db.example/memorizz"
    monkeypatch.setenv("FALLOW_STORES", f"{address} /srv/agents")
    assert stores_named("") == ("mongodb://reader:***@db.example/memorizz", "/srv/agents")
    assert address_of(stores_named(None)[0]) == address
    with pytest.raises(SettingError, match="several"):
        address_of(None)
    monkeypatch.delenv("FALLOW_STORES")
    with pytest.raises(SettingError, match="no store"):
        stores_named("")
