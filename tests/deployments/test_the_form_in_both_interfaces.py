"""The approval form in both of Prefect's interfaces, at the sizes people have (TRAPS 67, SPEC §7.1).

What a decision needs is looked for where a person sees it: every line box of the text lies in the window, and nothing
lies over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fallow.model.times import iso, wall_clock
from fallow.plans.storage import load_plan
from fallow.port.registry import open_provider
from fallow.showing.facts import run_name, visible
from tests.deployments.browsing import browser_page
from tests.flows.driving import PLAN, answer, drive, hidden, plans_of, resume, settings, shown, start
from tests.prefect_server import REPOSITORY, PrefectServer

pytestmark = [pytest.mark.server, pytest.mark.browser]

#: The button that sends the form.
SENDS = {"v1": "Submit", "v2": "Resume"}

#: The text's line boxes in the window, and whether the middle of each is the text's own element.
SEEN = """text => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let best = {found: false, seen: false, boxes: []};
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.indexOf(text);
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + text.length);
    const boxes = [...range.getClientRects()].map(r => [r.left, r.top, r.right, r.bottom]);
    const seen = boxes.length > 0 && boxes.every(([l, t, r, b]) => {
      if (r <= l || b <= t || l < 0 || t < 0 || r > innerWidth || b > innerHeight) return false;
      const top = document.elementFromPoint((l + r) / 2, (t + b) / 2);
      return top !== null && (top.contains(node) || node.parentElement.contains(top));
    });
    if (seen) return {found: true, seen, boxes};
    best = {found: true, seen, boxes};
  }
  return best;
}"""


def assert_seen(page: Any, text: str) -> None:
    what = page.evaluate(SEEN, text)
    assert what["seen"], f"not in the window: {text!r} ({what})"


@pytest.fixture(scope="module")
def pictures() -> Path:
    folder = REPOSITORY / "test-output" / "screenshots-of-the-form"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    return folder


@pytest.fixture(params=[("v1", 1280, 800), ("v2", 1280, 800), ("v1", 1440, 900), ("v2", 1440, 900)], ids=str)
def window(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Any]]:
    version, width, height = request.param
    with browser_page(width, height) as page:
        yield version, f"{version}-{width}x{height}", page


def open_form(server: PrefectServer, page: Any, version: str, run_id: Any) -> Any:
    """Opens the waiting run in an interface and presses Resume, as the docs say."""
    page.goto(f"{server.address}{'/v2' if version == 'v2' else ''}/runs/flow-run/{run_id}")
    if version == "v2":
        page.get_by_role("button", name="Open menu").click()
        page.get_by_role("menuitem", name="Resume").click()
        form = page.get_by_role("dialog")
    else:
        page.get_by_role("button", name="Resume").first.click()
        form = page.locator(".p-modal")
    form.get_by_text("Decision").first.wait_for()
    page.wait_for_timeout(700)
    return form


def test_what_a_decision_needs_is_seen_without_scrolling_trap_67(
    prefect_server: PrefectServer, prefect_api: Any, window: Any, pictures: Path, make_sample_store: Any
) -> None:
    version, name, page = window
    store = make_sample_store(now=iso(wall_clock()))
    run_id, state = start(prefect_api, PLAN, store=str(store), agent_id="agent-orchard", min_retention=0.3, force=True)
    assert state.name == "Suspended"
    stored = plans_of(store)[0]
    with open_provider(str(store)) as provider:
        plan = load_plan(provider, stored.plan_id)
    assert prefect_api.read_flow_run(run_id).name == run_name(plan)
    with settings(prefect_api, {"approval": {"approvers": ["Ada"]}}):
        assert resume(prefect_api, run_id, answer(stored, approved_by="Mallory")) == "ACCEPT"
        assert drive(prefect_api, run_id).name == "Suspended"
    properties = shown(prefect_api, run_id, 2)[0]["properties"]
    form = open_form(prefect_server, page, version, run_id)
    page.screenshot(path=pictures / f"{name}-refused.png")
    for text in (
        "NOT TAKEN: 'Mallory' is not an approver here",
        f"agent-orchard: hide {len(plan.entries)} of {visible(plan)} visible records",
        "all can be restored",
        "Could be lost:",
        "Highest importance",
        "/artifacts/key/retention-plan-agent-orchard-",
    ):
        assert any(text in field.get("description", "") for field in properties.values()), text
        assert_seen(page, text)
    assert form.get_by_role("button", name=SENDS[version]).is_visible()
    assert hidden(store) == set()
