"""What people are shown: every stored text is one harmless line (SPEC §6.5, §14)."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from fallow.tasks.pages import (
    data_url,
    report_page,
)

from fallow.model.arguments import instant
from fallow.model.errors import SettingError, StoreBusyError, StoreUnreadableError
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.plans.difference import between
from fallow.port.registry import open_provider
from fallow.showing.facts import visible, whose
from fallow.showing.markdown import escaped
from fallow.showing.pictures import plan_picture
from fallow.showing.plan_page import alt_text, form_text, plan_page, plan_rows
from fallow.usecases.desk import MAX_EXCERPT, MAX_ROWS, desk, excerpts, landscape
from fallow.usecases.planner import plan_scope
from tests.conftest import SAMPLE_NOW, write_as_agent

NOW = instant(SAMPLE_NOW)
PNG = "data:image/png;base64,AAAA"
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
        yield made, excerpts(provider, made.entries), desk(provider, made.plan_id, now=NOW, show_text=True)


@pytest.mark.parametrize("text", ["|", "\n", "<script>", "**", "`", "[a](b)", "\u202e", "\x1b[31m", "# a", HOSTILE])
def test_no_stored_text_is_markup(text):
    shown = escaped(text)
    assert "\n" not in shown
    assert "<" not in shown
    for mark in "|*`[]()#":
        assert shown.count(mark) == shown.count("\\" + mark)
    assert all(char.isprintable() for char in shown)


def test_a_hostile_store_adds_no_line_and_no_element_to_the_page(plan):
    made, texts, lying = plan
    assert len(made.entries) == 3
    page = plan_page(lying, PNG, "/results/plan.json")
    for shown in (form_text(lying), page):
        assert "<img" not in shown
        assert "](http" not in shown.replace("\\](", "").replace(f"]({PNG})", "")
        assert not [line for line in shown.splitlines() if line.startswith("# Approve")]
    assert page.count("\n1. **") >= 3
    assert "It is wide: it hides 100% of its scope" in page
    assert made.plan_id in form_text(lying)
    assert all(len(excerpt) <= MAX_EXCERPT for excerpt in texts.values())


def test_excerpts_stand_nowhere_unless_they_may_be_shown_14(plan):
    made, _, lying = plan
    hidden = replace(lying, texts=None)
    label = escaped(whose(made.scope))
    for shown in (form_text(hidden), plan_page(hidden), str(plan_rows(made.entries))):
        assert "onerror" not in shown.replace(escaped(HOSTILE), "").replace(label, "")
    assert "Texts are not shown here" in plan_page(hidden)


def test_the_page_is_risk_first_and_settings_come_last_7_1(plan):
    made, _, lying = plan
    page = plan_page(lying, PNG, "/results/plan.json")
    order = [
        f": hide {len(made.entries)} of 3 records?",
        "## What could be lost",
        "Highest importance 0.05",
        "The most important of them:",
        "## Since the last plan",
        "The first plan of this scope.",
        f"![{escaped(alt_text(made))}]({PNG})",
        "## The records",
        "## Settings that differ from the default",
        "| blast\\_radius | 0.5 | option |",
        "## How sure we are",
        "Rated: **100%**",
        "Nothing that is old and low enough is protected.",
        "| records in scope | 3 |",
        "| in this plan | 3 |",
        "## All settings",
        "| grace\\_days | 30.0 | default |",
        "/results/plan.json",
        made.document_sha256,
    ]
    places = [page.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert "days old, never recalled, importance 0.05: worth 0.017" in page
    assert f"repeat the number of records planned: **{len(made.entries)}**" in page
    between = page[page.index("## Settings that differ") : page.index("## How sure")]
    assert "| default |" not in between


def test_the_page_says_what_changed_since_the_last_plan_of_the_scope_7_1(tmp_path):
    rows = [
        {"_id": f"r{n}", "content": "c", "agent_id": "a", "timestamp": "2026-01-01T00:00:00Z", "importance": 0.05}
        for n in range(4)
    ]
    write_as_agent(tmp_path / "s", {"conversation_memory": rows[:3], "shared_memory": []})
    settings = resolve(environ={})
    with open_provider(str(tmp_path / "s")) as provider:
        first = plan_scope(provider, settings, Scope(agent_id="a"), as_of=NOW, now=NOW)
    (tmp_path / "s" / "conversation_memory" / "r0.json").unlink()
    write_as_agent(tmp_path / "s", {"conversation_memory": rows[3:]})
    with open_provider(str(tmp_path / "s")) as provider:
        second = plan_scope(provider, settings, Scope(agent_id="a"), as_of=NOW + 1, now=NOW + 1)
        lying = desk(provider, second.plan_id, now=NOW + 1, show_text=False)
    assert lying.difference == between(first, second)
    assert [key.record_id for key in lying.difference.new] == ["r3"]
    assert [key.record_id for key in lying.difference.gone] == ["r0"]
    page = plan_page(lying)
    assert "1 new, 1 no longer planned, 2 planned again" in page
    assert "New: conversation\\_memory:r3" in page


@pytest.mark.parametrize("number", [50, 500, 10_000])
def test_the_picture_is_a_small_png_and_the_page_of_500_rows_under_60_kb(tmp_path, number):
    rows = [
        {
            "_id": f"{n:08x}-0000-4000-8000-0123456789ab",
            "content": f"Turn {n} of a talk, with words enough to fill the whole of an excerpt. " * 3,
            "agent_id": "agent-harbour",
            "thread_id": f"thread-{n % 40}",
            "timestamp": iso(NOW - (40 + n * 7919 % 700) * MICROSECONDS_PER_DAY),
            "importance": (n * 31 % 100) / 100,
        }
        for n in range(number)
    ]
    write_as_agent(tmp_path / "s", {"conversation_memory": rows, "shared_memory": []})
    settings = resolve({"retention.min_retention": 0.15}, environ={})
    with open_provider(str(tmp_path / "s")) as provider:
        made = plan_scope(provider, settings, Scope(agent_id="agent-harbour"), as_of=NOW, now=NOW)
        lying = desk(provider, made.plan_id, now=NOW, show_text=True)
        dots = landscape(provider, made)
    assert sum(dot.planned for dot in dots) == len(made.entries)
    assert len(dots) == visible(made) == number
    picture = plan_picture(made, dots)
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert (width > 400, height > 200) == (True, True)
    page = plan_page(lying, data_url(picture))
    print(number, len(made.entries), len(picture), len(page.encode()))
    assert len(page.encode()) < 60_000
    assert "**conversation thread-" in page
    if number == 500:
        assert f"{len(made.entries)} of 500 visible records" in page


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
