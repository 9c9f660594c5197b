"""Hostile input of every kind: records, ids, answers, arguments, addresses, pages; and secrets that stay secret.

SPEC §1.2, §7.2, §14. The long forms (``--long``) run 100 000 record shapes.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mistune
import pytest
from fallow.tasks.pages import escaped, markdown_table
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide
from fallow.acting.holds import place_hold
from fallow.acting.restore import plan_keys, restore_records
from fallow.cli.app import run
from fallow.model.errors import FallowError
from fallow.model.record import PRIMARY_TYPES, basis, fingerprint, read_record
from fallow.model.scope import Scope
from fallow.model.settings import ApprovalConfig
from fallow.plans.storage import stored_plan
from fallow.port.registry import open_provider
from fallow.usecases.suppressed import suppressed_records
from tests.conftest import REPOSITORY, write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, planned, record, store, tree

# Records --------------------------------------------------------------------------------------------------

FIELDS = [
    *("importance", "access_count", "recall_count", "timestamp", "created_at", "createdAt", "last_accessed_at"),
    *("last_accessed", "pinned", "verified", "tags", "retention_state", "metadata", "content", "text", "agent_id"),
    *("owner_agent_id", "memory_id", "user_id", "thread_id", "conversation_id", "source_ids", "parent_id"),
    *("suppressed_by", "suppressed_from", "unsuppressed_at", "embedding", "summary_id", "$where", "a.b", "_id", ""),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["NaN", "inf", "1e999", "true", "yes", "suppressed", "SEALED", "pinned", "0.7", "-0", "9" * 400]),
    st.sampled_from(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59+00:00", "0001-01-01", "1e300", "2026-02-30"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), inner),
    max_leaves=6,
)
ROWS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=12)


def check_shape(row: dict[str, Any], memory_type: str) -> None:
    """Whatever a row holds: it reads without raising, and every field is in its range (SPEC §1.2)."""
    found = read_record(row, memory_type, "r1")
    assert found.importance is None or 0 <= found.importance <= 1
    assert isinstance(found.access_count, int)
    assert found.access_count >= 0
    assert found.retention_state in {"active", "suppressed", "sealed"}
    for instant in (found.created_at, found.last_accessed_at):
        assert instant is None or isinstance(instant, int)
    assert "r1" not in found.citations
    assert len(fingerprint(basis(row, found))) == 64


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(row=ROWS, memory_type=st.sampled_from(PRIMARY_TYPES))
@example(row={"content": 10**320, "importance": 10**5000, "access_count": -(10**320)}, memory_type=CONVERSATION)
def test_a_record_of_any_shape_is_read_within_its_ranges_1_2(row: dict[str, Any], memory_type: str) -> None:
    check_shape(row, memory_type)


@pytest.mark.long
@settings(max_examples=100_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=ROWS, memory_type=st.sampled_from(PRIMARY_TYPES))
def test_a_hundred_thousand_record_shapes_1_2(row: dict[str, Any], memory_type: str) -> None:
    check_shape(row, memory_type)


def written(value: Any) -> bool:
    """Whether a row can stand in a file at all."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, UnicodeEncodeError):
        return False
    return True


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROWS.filter(written), min_size=1, max_size=12))
def test_a_store_of_any_records_is_planned_applied_and_restored_and_others_stay_1_2(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("hostile") / "s"
    hostile = [{**row, "_id": f"h{n}"} for n, row in enumerate(rows)]
    with store(root, *hostile, record("good"), record("best", importance=0.9)) as provider:
        before = tree(root / CONVERSATION)
        plan = planned(provider)
        assert json.loads(json.dumps(plan.document, allow_nan=False)) == plan.document
        assert tree(root / CONVERSATION) == before
        named = {entry.record_id for entry in plan.entries}
        assert "best" not in named
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Ada",
            count=len(plan.entries),
            approval=ApprovalConfig(),
            now=NOW,
        )
        report = apply_plan(provider, plan.plan_id, now=NOW)
        assert not report.unknown
        after = tree(root / CONVERSATION)
        assert {name for name in after if after[name] != before[name]} <= {f"{name}.json" for name in named}
        restore_records(provider, plan_keys(provider, plan.plan_id), approved_by="Ada", reason="", now=NOW + 1)
        assert not [item for item in suppressed_records(provider) if item.suppressed_by == plan.plan_id]


# Ids ------------------------------------------------------------------------------------------------------

NASTY = [
    "$where",
    "$gt",
    "a.b.c",
    '{"$ne": null}',
    "__proto__",
    "' OR 1=1 --",
    "r1\u0000",
    "%2e%2e%2f",
    "CON",
    "-rf",
    "<img src=x>",
    "[x](http://evil.example)",
    "\u202er1",
    "ａ",
]


def fitting(names: list[str]) -> list[str]:
    """Those that a file can be named by."""
    return [name for name in names if "/" not in name and "\0" not in name]


def test_ids_that_mean_something_elsewhere_are_ids_and_nothing_else_trap_48(tmp_path: Path) -> None:
    names = fitting(NASTY)
    with store(tmp_path / "s", *(record(name) for name in names), record("best", importance=0.9)) as provider:
        _one_of_them(provider, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_on_mongodb_an_id_is_never_an_operator_trap_48(mongodb: str) -> None:
    import pymongo

    name = f"hostile_{os.getpid()}"
    names = [name for name in NASTY if "\0" not in name]
    with pymongo.MongoClient(mongodb) as client:
        client.drop_database(name)
        client[name][CONVERSATION].insert_many([record(item) for item in [*names, "best"]])
        client[name][CONVERSATION].update_one({"_id": "best"}, {"$set": {"importance": 0.9}})
        try:
            with open_provider(f"{mongodb.partition('/?')[0]}/{name}?directConnection=true") as provider:
                _one_of_them(provider, names)
            states = {row["_id"]: row.get("retention_state") for row in client[name][CONVERSATION].find()}
            assert [key for key, state in states.items() if state == "suppressed"] == ["$gt"]
        finally:
            client.drop_database(name)


def _one_of_them(provider: Any, names: list[str]) -> None:
    """Of many records with such ids exactly the one that is meant is held, left, suppressed."""
    plan = planned(provider)
    assert {entry.record_id for entry in plan.entries} == set(names)
    from fallow.model.keys import RecordKey

    place_hold(provider, records=[RecordKey(CONVERSATION, '{"$ne": null}')], owner="Grace", reason="$where", now=NOW)
    for scope in (Scope(memory_ids=('{"$ne": null}',)), Scope(user_id="$gt"), Scope(agent_id="' OR 1=1 --")):
        place_hold(provider, scope=scope, owner="Grace", reason="none of these", now=NOW)
    assert {entry.record_id for entry in planned(provider).entries} == set(names) - {'{"$ne": null}'}
    left = [name for name in names if name not in {"$gt", '{"$ne": null}'}]
    decide(
        provider,
        plan.plan_id,
        verdict="approved",
        approved_by="Ada",
        count=len(names),
        leave_out=[RecordKey(CONVERSATION, name) for name in left],
        approval=ApprovalConfig(),
        now=NOW,
    )
    report = apply_plan(provider, plan.plan_id, now=NOW)
    assert (report.applied, report.skipped) == (1, {"held": ['{"$ne": null}']})
    assert [item.record_id for item in suppressed_records(provider)] == ["$gt"]


# Answers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a plan over two records; its answers are refused, so that it stays as it is."""
    root = tmp_path_factory.mktemp("asked") / "s"
    with store(root, record("r1"), record("r2")) as provider:
        planned(provider)
    return root


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    approved_by=st.text(max_size=300),
    leave_out=st.lists(st.text(max_size=20), max_size=3),
    count=st.none() | st.integers(),
    signature=st.none() | st.text(max_size=80),
)
@example(approved_by="Ada\u0000", leave_out=[], count=2, signature=None)
@example(approved_by="\u202eadA", leave_out=[], count=2, signature=None)
def test_an_answer_of_any_kind_that_is_refused_writes_nothing_7_2(
    asked: Path, approved_by: str, leave_out: list[str], count: int | None, signature: str | None
) -> None:
    with open_provider(str(asked)) as provider:
        plan = planned(provider)
        fits = approved_by.strip() and approved_by.isprintable() and count == 2 and not leave_out
        assume(not (fits and not (signature or "").strip()))
        before = tree(asked)
        with pytest.raises(FallowError) as caught:
            decide(
                provider,
                plan.plan_id,
                verdict="approved",
                approved_by=approved_by,
                leave_out=leave_out,
                count=count,
                signature=signature,
                approval=ApprovalConfig(),
                now=NOW,
            )
        assert caught.value.hint
        assert tree(asked) == before
        assert stored_plan(provider, plan.plan_id, NOW).decision is None


# Arguments and addresses ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    command=st.sampled_from(
        [
            ("explain",),
            ("show",),
            ("certificate",),
            ("hold", "release", "--released-by", "Ada"),
            ("unsuppress", "--memory-type", CONVERSATION, "--approved-by", "Ada"),
            ("approve", "--approved-by", "Ada", "--count", "2"),
            ("plans", "--as-of"),
            ("retention-plan", "--as-of"),
            ("retention-plan", "--min-retention"),
            ("verify",),
            ("operator",),
        ]
    ),
    text=st.text(max_size=40) | st.sampled_from([*NASTY, "../../etc/passwd", "a/b", "x" * 300, "", "--", "-h"]),
)
def test_an_argument_of_any_kind_is_one_clear_line_14(
    asked: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], text: str
) -> None:
    assume(text not in {"-h"})
    outside = sorted(str(path) for path in asked.parent.iterdir())
    before = tree(asked)
    store_option = () if command[0] in {"verify", "operator"} else ("--store", str(asked))
    code = run([*command, text, *store_option])
    streams = capsys.readouterr()
    assert code in {0, 1, 2, 3}, (command, text)
    assert "an error in fallow itself" not in streams.err, streams.err
    assert "Traceback" not in streams.err
    if not (command == ("retention-plan", "--as-of") and code == 0) and "--min-retention" not in command:
        assert tree(asked) == before
    assert sorted(str(path) for path in asked.parent.iterdir()) == outside


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.text(max_size=40).filter(lambda text: not text.startswith(("mongodb", "oracle", "notion")))
    | st.sampled_from(["ftp://ada:hunter2@x/y", "file://", "file:///nowhere/../nowhere", "x:y", "://", "\0", "s3://"])
)
def test_an_address_of_any_kind_is_one_clear_line_without_its_secret_14(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    assume(not Path(text.strip() or ".").exists() if "\0" not in text else True)
    code = run(["plans", "--store", text])
    streams = capsys.readouterr()
    assert code in {1, 2}
    assert "an error in fallow itself" not in streams.err, (text, streams.err)
    assert "hunter2" not in streams.out + streams.err


# Pages ----------------------------------------------------------------------------------------------------

LINKS = ["http://evil.example", "https://evil.example/a_b", "www.evil.example", "WWW.evil.example", "ada@evil.example"]
MARKUP = [*LINKS, "ftp://x.y", "<http://x.y>", "![a](b)", "[a][b]", "[a]: http://x", "<b>", "&lt;b&gt;", "&#60;b&#62;"]
TEXTS = st.lists(
    st.sampled_from([*MARKUP, *"*_~`[]()!|<>&#\\:@.\n\t ", "1. ", "---", "```", "mailto:"]) | st.text(max_size=5),
    max_size=8,
).map("".join)


def rendered(text: str) -> str:
    """As the most generous of renderers shows it: tables, bare links, strikethrough, raw HTML."""
    render = mistune.create_markdown(escape=False, plugins=["table", "url", "strikethrough", "task_lists"])
    return str(render(text))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
@example(text="https://evil.example")
@example(text="see WWW.evil.example, ada@evil.example")
@example(text="![x](http://evil.example/a.png)")
def test_a_stored_text_renders_as_text_without_link_image_or_element(text: str) -> None:
    # A line of ours around it, as every page has: nothing of a page begins with a stored text.
    html = rendered(f"is: {escaped(text)} .")
    assert html.count("<") == 2, html  # the paragraph alone
    cell = rendered(markdown_table(("a", "b"), [(text, "x")]))
    assert "<a" not in cell
    assert "<img" not in cell
    assert cell.count("<td") == 2, cell


def test_the_renderer_above_would_show_a_link() -> None:
    for text in MARKUP[:4]:
        assert "<a" in rendered(f"is: {text} .") or text.lower().startswith("www")


# Secrets --------------------------------------------------------------------------------------------------

SECRETS = {
    "FALLOW_KEY_PASSPHRASE": "planted-passphrase-1",
    "FALLOW_MODEL_API_KEY": "planted-model-key-2",
    "NOTION_TOKEN": "planted-notion-token-3",
    "FALLOW_ORACLE_PASSWORD": "planted-oracle-password-4",
    "PREFECT_API_AUTH_STRING": "admin:planted-auth-5",
}
TEXT = "planted-memory-text-6"
PASSWORD = "planted-url-password-7"


def test_no_secret_and_no_memory_text_is_in_anything_a_whole_run_says_14(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG)
    rows = [record(f"r{n}", content=f"{TEXT} {n}", embedding=[0.1]) for n in range(4)] + [record("bad", content=TEXT)]
    write_as_agent(tmp_path / "s", {CONVERSATION: rows, "shared_memory": []})
    (tmp_path / "s" / CONVERSATION / "torn.json").write_text(f'{{"content": "{TEXT}')
    said: list[str] = []

    def line(*arguments: Any, code: int | None = 0) -> str:
        found = run([str(item) for item in arguments])
        streams = capsys.readouterr()
        said.append(streams.out + streams.err)
        assert code is None or found == code, said[-1]
        return streams.out

    at = ("--store", tmp_path / "s")
    key, register, file = tmp_path / "ada.pem", tmp_path / "operators.json", tmp_path / "c.json"
    public = json.loads(line("operator", "keygen", "--key", key, "--json"))["public_key"]
    private = key.read_text().splitlines()[1]
    monkeypatch.setenv("FALLOW_OPERATORS_FILE", str(register))
    line("operator", "add", "--name", "Ada", "--public-key", public)
    plan = json.loads(line("retention-plan", "--json", *at))["plan_id"]
    who = (plan, "--approved-by", "Ada", "--count", "5")
    line("approve", *who, "--key", key, "--signature-only", *at)
    monkeypatch.setenv("FALLOW_KEY_PASSPHRASE", "planted-wrong-passphrase-1")
    line("approve", *who, "--key", key, *at, code=1)
    monkeypatch.setenv("FALLOW_KEY_PASSPHRASE", SECRETS["FALLOW_KEY_PASSPHRASE"])
    line("retention-apply", *who, "--key", key, *at)
    line("certificate", plan, "--out", file, *at)
    said.append(file.read_text())
    for more in (("--csv",), ()):
        line("certificate", plan, *more, *at)
    line("verify", file, "--operators", register)
    for command in ("plans", "suppressed", "drift", "settings", "contracts", "doctor"):
        line(command, *at, code=None)
        line(command, "--json", *at, code=None)
    line("show", plan, *at)
    line("explain", "r1", *at)
    line("explain", "torn", *at, code=1)
    line("restore", "--plan", plan, "--approved-by", "Ada", *at)
    line("backfill-importance", "--dry-run", *at)
    for address in (f"ftp://ada:{PASSWORD}@h/x", f"mongodb://ada:{PASSWORD}@127.0.0.1:1/x?serverSelectionTimeoutMS=50"):
        line("plans", "--store", address, code=1)
        line("plans", "--json", "--store", address, code=1)
    # fallow's own rows beside the agent's, and the representation of what it holds in memory.
    for path in (tmp_path / "s" / "shared_memory").glob("*.json"):
        said.append(path.read_text())
    with open_provider(str(tmp_path / "s")) as provider:
        loaded = stored_plan(provider, plan, NOW)
        said += [repr(provider), repr(loaded), str(loaded), caplog.text]
    planted = [*SECRETS.values(), TEXT, PASSWORD, "planted-wrong-passphrase-1", private, "planted-auth-5"]
    for secret in planted:
        assert not [text for text in said if secret in text], secret
    assert len(said) > 30


def test_a_bug_s_own_words_are_not_shown_unless_they_are_asked_for_14(tmp_path: Path) -> None:
    """An error that nobody foresaw names its place, never its message: that could hold a text."""
    code = (
        "import fallow.plans.storage, fallow.cli.app as app\n"
        f"def broken(*a): raise RuntimeError({TEXT!r})\n"
        "fallow.plans.storage.list_plans = broken\n"
        f"raise SystemExit(app.run(['plans', '--store', {str(tmp_path)!r}]))"
    )
    (tmp_path / CONVERSATION).mkdir()
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "an error in fallow itself" in done.stderr
    assert TEXT not in done.stdout + done.stderr
