"""The whole approval in a real browser, against a real server and worker; screenshots are kept (SPEC §7, §9).

A person reads the plan's page, opens the waiting run, reads the form, leaves one record out and resumes; looks at
the suppressed table; then restores the plan from the UI's form of the restore deployment. What happened is asserted
through the API and the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fallow.model.times import iso, wall_clock
from fallow.plans.storage import load_plan
from fallow.port.registry import open_provider
from tests.deployments.browsing import browser_page
from tests.flows.driving import ASK, PLAN, create, hidden, plans_of, records, state_of
from tests.prefect_server import REPOSITORY, PrefectServer, stop, wait_until

pytestmark = [pytest.mark.server, pytest.mark.browser]


@pytest.fixture
def page() -> Iterator[Any]:
    with browser_page(1280, 900) as page:
        yield page


@pytest.fixture
def pictures() -> Path:
    """Where the screenshots of the last run stay; git ignores it."""
    folder = REPOSITORY / "test-output" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    return folder


@pytest.fixture
def worker(prefect_server: PrefectServer, tmp_path: Path) -> Iterator[None]:
    process = prefect_server.worker(tmp_path / "worker.log", FALLOW_APPROVERS="Ada", FALLOW_APPROVAL_SHOW_TEXT="true")
    yield
    stop(process)


def labelled(form: Any, label: str) -> Any:
    return form.get_by_label(re.compile(rf"^{label}\b"))


def test_a_person_approves_all_but_one_and_takes_it_back_in_the_ui(
    prefect_server: PrefectServer, prefect_api: Any, worker: None, page: Any, pictures: Path, make_sample_store: Any
) -> None:
    store = make_sample_store(now=iso(wall_clock()))
    before = records(store)
    run_id = create(prefect_api, PLAN, store=str(store), **ASK)
    wait_until(lambda: state_of(prefect_api, run_id) == "Suspended", "plan-retention waits for its form")
    plan = plans_of(store)[0]
    with open_provider(str(store)) as provider:
        entries = load_plan(provider, plan.plan_id).entries
    spared = entries[0]

    shown = next(
        item
        for item in prefect_api.read_artifacts()
        if (item.key or "").startswith("retention-plan-") and plan.plan_id in item.data
    )
    page.goto(f"{prefect_server.address}/v2/artifacts/artifact/{shown.id}")
    page.get_by_role("heading", name=re.compile("^whole store: hide")).first.wait_for()
    page.screenshot(path=pictures / "1-plan-page.png", full_page=True)

    page.goto(f"{prefect_server.address}/v2/runs/flow-run/{run_id}")
    page.get_by_role("button", name="Open menu").click()
    page.screenshot(path=pictures / "2-waiting-run.png")
    page.get_by_role("menuitem", name="Resume").click()
    form = page.get_by_role("dialog")
    labelled(form, "Plan Id").wait_for()
    page.screenshot(path=pictures / "3-form-what-it-says.png")
    form.get_by_role("button", name="Select Decision").click()
    page.get_by_role("option", name="approve").click()
    labelled(form, "Approved By").fill("Ada")
    labelled(form, "Count").fill(str(plan.planned))
    assert labelled(form, "Plan Id").input_value() == plan.plan_id
    labelled(form, "Reason").fill("The year is over.")
    form.get_by_role("button", name="Add item").click()
    adding = page.get_by_role("button", name="Add item")
    items = form.locator("div").filter(has=adding).filter(has=page.locator("textarea"))
    items.last.locator("textarea").fill(f"{spared.memory_type}:{spared.record_id}")
    page.screenshot(path=pictures / "4-form-filled.png")
    assert hidden(store) == set()
    told: list[str] = []
    page.on(
        "response", lambda answer: "/resume" in answer.url and told.append(f"{answer.status} {answer.text()[:200]}")
    )

    def resumed() -> bool:
        """As a person does: presses the button, and once more where the server was busy and the form still stands."""
        if form.is_visible() and form.get_by_role("button", name="Resume").is_enabled():
            form.get_by_role("button", name="Resume").click()
        page.wait_for_timeout(3000)
        return state_of(prefect_api, run_id) not in {"Suspended", "Resuming"}

    wait_until(lambda: resumed() or len(told) > 5, "the run was resumed")
    assert resumed(), told
    wait_until(lambda: state_of(prefect_api, run_id) in {"Applied", "Failed", "Crashed"}, "the plan is applied")
    assert state_of(prefect_api, run_id) == "Applied"
    assert hidden(store) == {entry.record_id for entry in entries} - {spared.record_id}
    assert plans_of(store)[0].decision.by == "Ada"
    page.goto(f"{prefect_server.address}/v2/runs/flow-run/{run_id}?tab=Artifacts")
    page.get_by_text("retention-report").first.wait_for()
    page.screenshot(path=pictures / "5-applied.png")
    # The server's other tests leave tables under the same key.
    tables = [item for item in prefect_api.read_artifacts() if item.key == "suppressed-memories"]
    table = max(tables, key=lambda item: item.created)
    rows = json.loads(table.data)
    named = {f"{entry.memory_type}:{entry.record_id}" for entry in entries[1:]}
    assert {row["records"] for row in rows if row["plan_id"] == plan.plan_id} == named
    page.goto(f"{prefect_server.address}/v2/artifacts/artifact/{table.id}")
    page.get_by_text("records").filter(visible=True).first.wait_for()
    page.get_by_text(rows[0]["records"]).filter(visible=True).first.wait_for()
    page.screenshot(path=pictures / "6-suppressed-table.png", full_page=True)

    restore = prefect_api.read_deployment_by_name("restore-memories/restore")
    known = {run.id for run in prefect_api.read_flow_runs(limit=200)}
    page.goto(f"{prefect_server.address}/v2/deployments/deployment/{restore.id}/run")
    for name, value in (
        ("approved_by", "Ada"),
        ("plan_id", plan.plan_id),
        ("reason", "Trying the way back."),
        ("store", str(store)),
    ):
        labelled(page, name).fill(value)
    page.screenshot(path=pictures / "7-restore-form.png", full_page=True)
    page.get_by_role("button", name="Submit").click()

    def restoring() -> Any:
        return next(
            (
                run
                for run in prefect_api.read_flow_runs(limit=200)
                if run.deployment_id == restore.id and run.id not in known
            ),
            None,
        )

    found = wait_until(restoring, "the UI has started a restore run")
    wait_until(lambda: prefect_api.read_flow_run(found.id).state.is_final(), "the restore run ends")
    assert state_of(prefect_api, found.id) == "Applied"
    assert hidden(store) == set()
    after = records(store)
    assert set(after) == set(before)
    unchanged = f"{spared.memory_type}/{spared.record_id}.json"
    assert after[unchanged] == before[unchanged]
    page.goto(f"{prefect_server.address}/v2/runs/flow-run/{found.id}")
    page.get_by_text("Applied").first.wait_for()
    page.screenshot(path=pictures / "8-restored.png")
    assert len(list(pictures.glob("*.png"))) == 8
