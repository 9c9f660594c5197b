"""Notion answering badly: recorded faults, and one fault at every request of an apply (TRAPS 22, 25, 34, 46, 49)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fallow.providers.notion_calls import Clock

from fallow.acting.apply import apply_plan
from fallow.model.errors import FallowError, StoreBusyError, StoreUnreadableError, StoreUnwritableError
from fallow.model.keys import RecordKey
from fallow.model.settings import RetentionConfig
from fallow.plans.events import forgotten_key
from fallow.plans.plan import RetentionPlan
from fallow.port.journal import CHANGE_PREFIX, content_of, event_id
from fallow.port.protocol import Patch
from fallow.port.reading import fetch_keys
from fallow.usecases.planner import RetentionPlanner
from tests.providers.notion_fake import Fault, rich
from tests.providers.notion_world import NOW, World, message, world

CONVERSATION = "conversation_memory"
MINUTE = 60_000_000


@pytest.fixture
def notion(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def suppress(notion: World, *names: str, **options: Any) -> list[str]:
    provider = notion.open(**options) if options else notion.provider
    patches = [
        Patch(RecordKey(CONVERSATION, name), {}, {"retention_state": "suppressed", "suppressed_by": "p"})
        for name in names
    ]
    return [outcome.status for outcome in provider.patch(patches)]


def rate_limited(**where: Any) -> Fault:
    return Fault("error", status=429, code="rate_limited", headers={"Retry-After": "3"}, **where)


# Recorded faults


@pytest.mark.parametrize(("method", "path"), [("POST", "query"), ("GET", "pages/"), ("PATCH", "pages/")])
def test_429_then_502_then_409_then_200(notion: World, method: str, path: str) -> None:
    """TRAPS 46: waits as told, and sends again what may be sent again."""
    notion.provider.insert(CONVERSATION, [message("r1")])
    notion.fake.faults = [
        rate_limited(method=method, path=path),
        Fault("error", method, path, status=502, code="bad_gateway"),
        Fault("error", method, path, status=409, code="conflict_error"),
    ]
    start = notion.clock.time
    assert suppress(notion, "r1") == ["applied"]
    assert notion.clock.time - start >= 3
    assert all(fault.times == 0 for fault in notion.fake.faults)
    assert notion.envelope("r1")["data"]["retention_state"] == "suppressed"


def test_retry_after_holds_every_process_off(notion: World) -> None:
    """The wait that Notion asks one of them for is in the file that they share, before anybody waits."""
    notion.provider.insert(CONVERSATION, [message("r1")])
    [pace] = notion.folder.glob("notion-pace-*")
    promised: list[float] = []
    sleep = notion.clock.sleep
    watching = notion.open(
        clock=Clock(notion.clock.now, lambda seconds: (promised.append(float(pace.read_text())), sleep(seconds))[1])
    )
    notion.fake.faults = [rate_limited(path="query")]
    start = notion.clock.time
    watching.fetch(CONVERSATION, ["r1"])
    assert max(promised) >= start + 3
    assert notion.clock.time >= start + 3


@pytest.mark.parametrize("value", ["Thu, 01 Jan 1970 00:00:00 GMT", "soon", "-4", "999999"])
def test_odd_retry_after_values_do_not_hang(notion: World, value: str) -> None:
    notion.provider.insert(CONVERSATION, [message("r1")])
    fault = rate_limited(path="query")
    fault.headers = {"Retry-After": value}
    notion.fake.faults = [fault]
    if value == "999999":
        with pytest.raises(StoreBusyError):
            notion.provider.fetch(CONVERSATION, ["r1"])
    else:
        assert set(notion.provider.fetch(CONVERSATION, ["r1"])) == {"r1"}


@pytest.mark.parametrize("kind", ["error_after", "cut", "drop_after"])
def test_an_insert_whose_answer_was_lost_leaves_one_page(notion: World, kind: str) -> None:
    notion.fake.faults = [Fault(kind, "POST", "pages$")]
    outcomes = notion.provider.insert(CONVERSATION, [message("r1"), message("r2")])
    assert [outcome.status for outcome in outcomes] == ["applied", "applied"]
    assert [len(notion.fake.page_ids(name)) for name in ("r1", "r2")] == [1, 1]


@pytest.mark.parametrize("kind", ["error", "drop"])
def test_an_insert_that_never_arrived_is_sent_again(notion: World, kind: str) -> None:
    notion.fake.faults = [Fault(kind, "POST", "pages$")]
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, [message("r1")])] == ["applied"]
    assert len(notion.fake.page_ids("r1")) == 1


def test_an_insert_whose_answer_was_lost_is_found_though_queries_lag(notion: World) -> None:
    notion.provider.insert(CONVERSATION, [message("r0")])
    notion.fake.lag = 2
    notion.fake.faults = [Fault("error_after", "POST", "pages$")]
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, [message("r1")])] == ["applied"]
    assert len(notion.fake.page_ids("r1")) == 1


@pytest.mark.parametrize("kind", ["error_after", "cut", "drop_after"])
def test_a_patch_whose_answer_was_lost_is_sent_once(notion: World, kind: str) -> None:
    notion.provider.insert(CONVERSATION, [message("r1")])
    notion.fake.faults = [Fault(kind, "PATCH")]
    assert suppress(notion, "r1") == ["applied"]
    assert len([one for one in notion.fake.sent if one.method == "PATCH"]) == 1


def test_a_touch_whose_answer_was_lost_counts_once(notion: World) -> None:
    notion.provider.insert(CONVERSATION, [message("r1")])
    notion.fake.faults = [Fault("error_after", "PATCH")]
    [outcome] = notion.provider.touch_many(CONVERSATION, ["r1"], NOW)
    assert (outcome.status, notion.envelope("r1")["data"]["access_count"]) == ("applied", 1)


def test_a_slow_answer_is_settled_by_reading(notion: World) -> None:
    notion.provider.insert(CONVERSATION, [message("r1")])
    notion.fake.faults = [Fault("slow", "PATCH", seconds=0.4), Fault("slow", "POST", "query", seconds=0.4)]
    assert suppress(notion, "r1", timeout=0.2) == ["applied"]
    assert notion.envelope("r1")["data"]["suppressed_by"] == "p"


def test_a_patch_that_nobody_can_confirm_is_unknown(notion: World) -> None:
    """Never guessed: after the PATCH nothing answers any more."""
    notion.provider.insert(CONVERSATION, [message("r1"), message("r2")])
    down = Fault("error", "GET", "pages/", skip=1, times=10_000)
    notion.fake.faults = [down]
    assert suppress(notion, "r1") == ["unknown"]
    notion.fake.faults = []
    assert notion.envelope("r1")["data"]["retention_state"] == "suppressed"


def test_a_write_that_may_have_landed_is_never_called_failed(notion: World) -> None:
    """Its answer was lost, what came after was refused for being too much: only a reading can tell."""
    notion.provider.insert(CONVERSATION, [message("r1")])
    busy = [rate_limited(times=10_000, method="PATCH"), rate_limited(times=10_000, method="POST", path="pages$")]
    notion.fake.faults = [Fault("error", "PATCH"), *busy]
    assert suppress(notion, "r1") == ["unknown"]
    notion.fake.faults = [Fault("error", "POST", "pages$"), *busy]
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, [message("r2")])] == ["unknown"]
    notion.fake.faults = [Fault("error_after", "POST", "pages$"), Fault("error", path="query", skip=1, times=10_000)]
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, [message("r3")])] == ["unknown"]
    notion.fake.faults = []
    assert set(notion.provider.fetch(CONVERSATION, ["r1", "r2", "r3"])) == {"r1", "r3"}


def test_a_store_that_stays_busy_is_said_and_what_was_done_is_told(notion: World) -> None:
    notion.provider.insert(CONVERSATION, [message(f"r{number}") for number in range(4)])
    notion.fake.faults = [rate_limited(times=10_000, method="PATCH")]
    with pytest.raises(StoreBusyError, match="rate-limiting"):
        suppress(notion, "r0", "r1")
    notion.fake.faults = [rate_limited(times=10_000, method="PATCH", skip=2)]
    assert suppress(notion, "r0", "r1", "r2", "r3") == ["applied", "applied", "failed", "failed"]
    notion.fake.faults = [Fault("error", times=10_000, status=503)]
    with pytest.raises(StoreBusyError, match="did not answer"):
        list(notion.provider.scan(CONVERSATION, ["record_id"]))
    with pytest.raises(StoreBusyError):
        notion.provider.fetch(CONVERSATION, ["r1"])


def test_a_server_that_is_down_is_busy_not_empty(notion: World) -> None:
    """HOUSE: an outage must not look like an empty store."""
    notion.provider.insert(CONVERSATION, [message("r1")])
    down = notion.open(patience=2)
    notion.fake.faults = [Fault("drop", times=10_000)]
    with pytest.raises(StoreBusyError):
        list(down.scan(CONVERSATION, ["record_id"]))


def test_missing_capabilities_are_said(notion: World) -> None:
    notion.provider.insert(CONVERSATION, [message("r1")])
    notion.fake.faults = [Fault("error", "PATCH", status=403, code="restricted_resource", times=9)]
    with pytest.raises(StoreUnwritableError, match="does not let this integration write"):
        suppress(notion, "r1")
    notion.fake.faults = [Fault("error", "POST", "query", status=403, code="restricted_resource", times=9)]
    with pytest.raises(StoreUnreadableError, match="does not let this integration read"):
        notion.provider.fetch(CONVERSATION, ["r1"])


def test_a_purge_whose_answer_was_lost_is_settled(notion: World) -> None:
    notion.provider.insert("semantic_cache", [{"_id": "q1", "query_text": "hello"}])
    notion.fake.faults = [Fault("error_after", "PATCH")]
    [outcome] = notion.provider.purge_cache({"q1": {}})
    assert outcome.status == "applied"
    notion.provider.insert("semantic_cache", [{"_id": f"q{number}", "query_text": "hello"} for number in range(2, 6)])
    notion.fake.faults = [rate_limited(method="PATCH", skip=2, times=10_000)]
    outcomes = notion.provider.purge_cache({f"q{number}": {} for number in range(2, 6)})
    assert [outcome.status for outcome in outcomes] == ["applied", "applied", "failed", "failed"]
    notion.fake.faults = [Fault("error", "GET", "pages/", skip=1, times=10_000)]
    assert [outcome.status for outcome in notion.provider.purge_cache({"q4": {}})] == ["unknown"]


# Plans


def planned(notion: World, rows: list[dict[str, Any]]) -> tuple[RetentionPlanner, RetentionPlan]:
    for start in range(0, len(rows), 50):
        outcomes = notion.provider.insert(CONVERSATION, rows[start : start + 50])
        assert {outcome.status for outcome in outcomes} == {"applied"}
    notion.clock.time += 3600
    planner = RetentionPlanner(notion.provider, "a1", RetentionConfig())
    return planner, planner.plan(as_of=NOW, now=NOW)


def state_of(notion: World, plan: RetentionPlan) -> dict[str, Any]:
    """What the store says about a plan, read past the provider."""
    data = {entry.record_id: notion.envelope(entry.record_id)["data"] for entry in plan.entries}
    journal = [
        content_of({"content": notion.fake.text(page, "Content")})
        for page in notion.fake.pages
        if notion.fake.text(page, "Memorizz ID").startswith(CHANGE_PREFIX)
    ]
    events = [
        content_of({"content": notion.fake.text(page, "Content")}).get("event_type")
        for page in notion.fake.pages
        if notion.fake.text(page, "Record type") == "learning_event"
    ]
    return {
        "suppressed": sorted(name for name, row in data.items() if row.get("retention_state") == "suppressed"),
        "by": {row.get("suppressed_by") for row in data.values()},
        "journal": sorted(entry["target_record_id"] for entry in journal),
        "forgotten": events.count("memory_forgotten"),
        "pages": len(notion.fake.pages),
        "once": len({notion.fake.text(page, "Memorizz ID") for page in notion.fake.pages}),
    }


FAULTS = (
    Fault("error", status=502, code="bad_gateway"),
    Fault("error_after", status=502, code="bad_gateway"),
    Fault("error", status=409, code="conflict_error"),
    Fault("error", status=429, code="rate_limited", headers={"Retry-After": "3"}),
    Fault("cut"),
    Fault("drop"),
    Fault("drop_after"),
    Fault("error", status=400, code="validation_error"),
    Fault("error", status=403, code="restricted_resource"),
)


def applied_with(notion: World, plan: RetentionPlan, fault: Fault, number: int) -> str | None:
    """Applies the plan with a fault at its n-th request, then once more; a complaint, or None where all is right."""
    notion.provider = notion.open(snapshot=False)
    fault.skip = number
    notion.fake.faults = [fault]
    names = sorted(entry.record_id for entry in plan.entries)
    where = f"{fault.kind} {fault.status} at {number}"
    try:
        report = apply_plan(notion.provider, plan.plan_id, now=NOW + MINUTE)
    except FallowError:
        # Not finished, and said so.
        pass
    else:
        rows = fetch_keys(notion.provider, [entry.key for entry in plan.entries])
        hidden = {key.record_id for key, row in rows.items() if isinstance(row, dict) and row.get("suppressed_by")}
        told = {name for ids in (*report.failed.values(), *report.skipped.values()) for name in ids}
        if (
            (report.applied + report.already != len(hidden))
            or hidden & told
            or not set(names) <= hidden | told | set(report.unknown)
        ):
            return f"{where}: the report is not true"
    if fault.times:
        return f"{where}: the fault did not come"
    last = apply_plan(notion.provider, plan.plan_id, now=NOW + MINUTE)
    if (last.state, last.applied + last.already) != ("Applied", len(names)) or last.failed or last.skipped:
        return f"{where}: ended {last.to_json()}"
    state = state_of(notion, plan)
    if state["suppressed"] != names or state["by"] != {plan.plan_id} or state["journal"] != names:
        return f"{where}: {state}"
    if state["forgotten"] != 1 or state["pages"] != state["once"]:
        return f"{where}: {state}"
    return None


def test_a_fault_at_every_request_of_an_apply(notion: World, request: pytest.FixtureRequest) -> None:
    """The end state is right and the report true, whichever request goes wrong in whichever way."""
    planner, plan = planned(notion, [message(f"r{number}") for number in range(2)])
    planner.approve(plan, approved_by="ann", count=2, now=NOW)
    before = copy.deepcopy((notion.fake.sources, notion.fake.pages))
    provider = notion.open(snapshot=False)
    clean = len(notion.fake.sent)
    apply_plan(provider, plan.plan_id, now=NOW + MINUTE)
    requests = len(notion.fake.sent) - clean
    assert requests > 20
    complete = request.config.getoption("--long")
    wrong: list[str] = []
    for number in range(requests):
        for turn, kind in enumerate(FAULTS):
            # The short form meets every request once and every kind many times.
            if not complete and turn != (number * 5) % len(FAULTS):
                continue
            notion.fake.sources, notion.fake.pages = copy.deepcopy(before)
            complaint = applied_with(notion, plan, copy.copy(kind), number)
            if complaint:
                wrong.append(complaint)
    assert not wrong


def test_six_ways_to_have_moved_since_planning(notion: World) -> None:
    """TRAPS 22 and 23."""
    planner, plan = planned(notion, [message(f"r{number:02d}") for number in range(40)])
    assert len(plan.entries) == 40
    notion.rewrite("r01", access_count=50)
    notion.fake.edit_page(notion.page("r02"), {"Content": {"rich_text": [{"text": {"content": "edited"}}]}})
    notion.provider.insert(
        "summaries", [{"_id": "s1", "content": "x", "agent_id": "a1", "source_message_ids": ["r03"]}]
    )
    notion.rewrite("r04", pinned=True)
    notion.fake.trash_page(notion.page("r05"))
    notion.rewrite("r06", retention_state="suppressed", suppressed_by="forget-plan-other")
    notion.rewrite("r07", x_custom="kept")
    report = planner.apply(plan, approved_by="ann", count=40, now=NOW + MINUTE)
    assert report.state == "Applied"
    assert report.skipped == {
        "recalled": ["r01"],
        "edited": ["r02"],
        "newly cited": ["r03"],
        "pinned": ["r04"],
        "gone": ["r05"],
        "suppressed": ["r06"],
    }
    assert notion.envelope("r07")["data"]["x_custom"] == "kept"
    assert report.applied == 34


def test_a_record_restored_between_two_applies_stays_restored(notion: World) -> None:
    """TRAPS 25 and 49."""
    planner, plan = planned(notion, [message(f"r{number}") for number in range(3)])
    planner.approve(plan, approved_by="ann", count=3, now=NOW)
    notion.fake.faults = [Fault("error", "POST", "pages$", status=403, code="restricted_resource", times=99)]
    with pytest.raises(StoreUnwritableError):
        apply_plan(notion.provider, plan.plan_id, now=NOW + MINUTE)
    notion.fake.faults = []
    planner.unsuppress("r1", CONVERSATION, approved_by="bea", reason="needed", now=NOW + 2 * MINUTE)
    report = apply_plan(notion.provider, plan.plan_id, now=NOW + 3 * MINUTE)
    assert (report.already, report.skipped) == (2, {"restored": ["r1"]})
    assert "retention_state" in notion.envelope("r1")["data"]
    assert notion.envelope("r1")["data"]["retention_state"] == "active"
    again = RetentionPlanner(notion.provider, "a1", RetentionConfig()).plan(
        as_of=NOW + 4 * MINUTE, now=NOW + 4 * MINUTE
    )
    assert again.entries == ()


def test_rating_suppressing_and_restoring_move_no_time_and_no_count(notion: World) -> None:
    """TRAPS 17 and 47."""
    row = message(
        "r1", last_accessed_at="2026-07-01T00:00:00+00:00", access_count=1, created_at="2026-06-01", updated_at=5
    )
    planner, plan = planned(notion, [row, message("r2", access_count=1000, importance=1)])
    planner.apply(plan, approved_by="ann", count=1, now=NOW + MINUTE)
    planner.restore_plan(plan.plan_id, approved_by="ann", reason="back", now=NOW + 2 * MINUTE)
    stored = notion.provider.fetch(CONVERSATION, ["r1"])["r1"]
    assert {name: stored[name] for name in row} == row
    assert not any("in_trash" in repr(one.body) for one in notion.fake.writes())


@pytest.mark.parametrize("name", ["x" * 200, "乗" * 200, "𝔘" * 100], ids=["ascii", "three bytes", "pairs"])
def test_a_plan_over_long_ids_fits_as_well(notion: World, name: str) -> None:
    """What lists records in one row is bounded by its size, not only by their number."""
    source, page = notion.source, notion.fake.pages
    assert notion.provider.insert(CONVERSATION, [message(f"{name}0")])[0].status == "applied"
    first = page[notion.page(f"{name}0")]
    text = notion.fake.text(first["id"], "Memorizz metadata")
    for number in range(1, 500):
        copied = {**first, "id": f"{number:032x}", "seq": number, "properties": dict(first["properties"])}
        for field, value in (
            ("Memorizz ID", f"{name}{number}"),
            ("Memorizz metadata", text.replace(f"{name}0", f"{name}{number}")),
        ):
            copied["properties"][field] = [rich(value)]
        page[str(UUID(copied["id"]))] = {**copied, "id": str(UUID(copied["id"])), "source": source}
    plan = RetentionPlanner(notion.provider, "a1", RetentionConfig()).plan(as_of=NOW, now=NOW)
    assert len(plan.entries) == 500
    [event] = notion.provider.find("shared_memory", "learn-evt-")
    payload = content_of(event)["payload"]
    assert payload["candidate_count"] == 500
    assert 100 < len(payload["candidates"]) < 500


def test_a_plan_of_500_records_is_stored_in_parts(notion: World, request: pytest.FixtureRequest) -> None:
    planner, plan = planned(notion, [message(f"a-record-id-{number:036d}") for number in range(510)])
    assert (len(plan.entries), plan.counts["deferred"]) == (500, 10)
    parts = [page for page in notion.fake.pages if notion.fake.text(page, "Memorizz ID").startswith("fallow-planpart-")]
    assert len(parts) > 3
    again = RetentionPlanner(notion.open(snapshot=False), "a1", RetentionConfig()).plan(as_of=NOW, now=NOW)
    assert again.plan_id == plan.plan_id
    if not request.config.getoption("--long"):
        return
    report = planner.apply(plan, approved_by="ann", count=500, now=NOW + MINUTE)
    assert (report.state, report.applied) == ("Applied", 500)
    state = state_of(notion, plan)
    assert (len(state["suppressed"]), len(state["journal"]), state["forgotten"]) == (500, 500, 1)


def test_two_applies_at_once_suppress_once_and_end_in_one_state(notion: World) -> None:
    """Notion inserts are no compare-and-set: doubled journal pages may exist, and every reader takes the first."""
    planner, plan = planned(notion, [message(f"r{number}") for number in range(12)])
    planner.approve(plan, approved_by="ann", count=12, now=NOW)
    providers = [notion.open(snapshot=False) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda one: apply_plan(one, plan.plan_id, now=NOW + MINUTE), providers))
    assert all(report.state == "Applied" and not report.failed and not report.unknown for report in reports)
    assert all(report.applied + report.already == 12 for report in reports)
    state = state_of(notion, plan)
    assert len(state["suppressed"]) == 12
    rows = [content_of(row)["target_record_id"] for row in notion.provider.find("shared_memory", CHANGE_PREFIX)]
    assert sorted(rows) == state["suppressed"]
    assert len(list(notion.provider.find("shared_memory", event_id(forgotten_key(plan.plan_id))))) == 1
