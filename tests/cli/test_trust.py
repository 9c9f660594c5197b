"""Trust on the command line: keys, signed approvals, holds, drift, certificates (SPEC §7, §16)."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from fallow.cli.app import run
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record, tree

PASSPHRASE = "correct horse battery"


class Line:
    """The command line in this process, on one store."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys

    def __call__(self, *arguments: Any) -> tuple[int, str, str]:
        code = run([str(item) for item in arguments])
        streams = self._capsys.readouterr()
        return code, streams.out, streams.err

    def document(self, *arguments: Any, code: int = 0, store: bool = True) -> dict[str, Any]:
        where = ("--store", self.root) if store else ()
        found, out, err = self(*arguments, *where, "--json")
        assert found == code, (out, err)
        assert PASSPHRASE not in out + err
        return json.loads(out)


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Line:
    rows = [record(f"r{n}", days=200 + n) for n in range(4)]
    rows += [record(f"k{n}", days=200, importance=0.9) for n in range(30)]
    write_as_agent(tmp_path / "store", {CONVERSATION: rows, "shared_memory": []})
    monkeypatch.setenv("FALLOW_KEY_PASSPHRASE", PASSPHRASE)
    return Line(tmp_path / "store", capsys)


@pytest.fixture
def signing(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Signed approvals are required, and Ada is registered; her key's file."""
    key, register = tmp_path / "ada.pem", tmp_path / "operators.json"
    made = line.document("operator", "keygen", "--key", key, store=False)
    monkeypatch.setenv("FALLOW_OPERATORS_FILE", str(register))
    line.document("operator", "add", "--name", "Ada", "--public-key", made["public_key"], store=False)
    monkeypatch.setenv("FALLOW_REQUIRE_SIGNED_APPROVALS", "1")
    return key


def test_a_key_s_file_is_its_owner_s_alone_and_never_overwritten_7(line: Line, signing: Path) -> None:
    assert stat.S_IMODE(signing.stat().st_mode) == 0o600
    data = signing.read_bytes()
    assert b"ENCRYPTED PRIVATE KEY" in data
    assert "exists" in line.document("operator", "keygen", "--key", signing, code=1, store=False)["error"]["message"]
    assert signing.read_bytes() == data


def test_from_a_key_to_a_signed_apply_7(line: Line, signing: Path) -> None:
    plan = line.document("retention-plan")["plan_id"]
    who = (plan, "--approved-by", "Ada", "--reason", "spring")
    before = tree(line.root)
    assert line.document("retention-apply", *who, code=1)["error"]["code"] == "signature_refused"
    assert tree(line.root) == before
    done = line.document("retention-apply", *who, "--key", signing, "--leave-out", "r1")
    assert (done["applied"], done["standing"], done["left_out"]) == (3, "signed", ["r1"])
    assert {item["standing"] for item in line.document("suppressed")["records"]} == {"signed"}
    shown = line.document("show", plan)
    assert shown["decision"]["standing"] == "signed"
    code, out, _ = line("show", plan, "--store", line.root)
    assert (code, "(signed)" in out) == (0, True)
    journal = line.document("explain", "r0")["journal"]
    assert journal[0]["standing"] == "signed"


def test_a_signature_made_elsewhere_is_pasted_7(line: Line, signing: Path) -> None:
    plan = line.document("retention-plan")["plan_id"]
    before = tree(line.root)
    token = line.document("approve", plan, "--approved-by", "Ada", "--key", signing, "--signature-only")["signature"]
    assert tree(line.root) == before
    code, out, _ = line(
        "approve", plan, "--approved-by", "Ada", "--key", signing, "--signature-only", "--store", line.root
    )
    assert code == 0
    assert re.fullmatch(r"fallow1\.[\w-]+\.[\w-]+\n", out)
    assert line.document("approve", plan, "--approved-by", "Bob", "--signature", token, code=1)["error"]
    assert tree(line.root) == before
    assert line.document("approve", plan, "--approved-by", "Ada", "--signature", token)["standing"] == "signed"


def test_a_revoked_key_approves_nothing_7(line: Line, signing: Path) -> None:
    plan = line.document("retention-plan")["plan_id"]
    listed = line.document("operator", "list", store=False)
    assert [item["name"] for item in listed["operators"]] == ["Ada"]
    line.document("operator", "revoke", "--name", "Ada", "--reason", "lost", store=False)
    refused = line.document("approve", plan, "--approved-by", "Ada", "--key", signing, code=1)["error"]
    assert "revoked" in refused["message"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("operator", "keygen"), 2),
        (("operator", "add", "--name", "Ada", "--public-key", "x", "--file", "{tmp}/o.json"), 1),
        (("operator", "add", "--file", "{tmp}/o.json"), 2),
        (("operator", "list"), 2),
        (("operator", "list", "--file", "{tmp}/nowhere.json"), 1),
        (("operator", "sign"), 2),
    ],
)
def test_what_is_wrong_with_an_operator_is_one_line_14(
    line: Line, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    found, out, err = line(*(item.format(tmp=tmp_path) for item in arguments))
    assert (found, out) == (code, "")
    assert len(err.strip().splitlines()) == 1


def test_a_claimed_approval_is_called_claimed_wherever_it_is_shown_7(line: Line) -> None:
    plan = line.document("retention-plan")["plan_id"]
    code, out, _ = line("retention-apply", plan, "--approved-by", "Ada", "--store", line.root)
    assert code == 0
    assert "claimed" in out
    assert "claimed" in line.document("show", plan)["decision"]["standing"]
    assert all("claimed" in item["standing"] for item in line.document("suppressed")["records"])
    assert "claimed" in line.document("explain", "r0")["journal"][0]["standing"]
    assert "claimed" in line.document("explain", "r0")["plans"][0]["standing"]
    for command in (("suppressed",), ("show", plan), ("explain", "r0")):
        _, out, _ = line(*command, "--store", line.root)
        assert "claimed" in out


def test_holds_on_the_command_line_6_3(line: Line) -> None:
    why = ("--owner", "Grace", "--reason", "case 17")
    placed = line.document("hold", "add", "--record", f"{CONVERSATION}:r1", "--until", "2099-01-01", *why)
    assert line.document("retention-plan")["counts"]["protected"]["held"] == 1
    assert line.document("hold", "list")["holds"][0]["active"]
    told = line.document("explain", "r1")
    assert (told["protected_by"], told["holds"][0]["owner"]) == ("held", "Grace")
    _, out, _ = line("explain", "r1", "--store", line.root)
    assert "held by Grace" in out
    assert line.document("hold", "release", placed["hold_id"], code=2)
    released = line.document("hold", "release", placed["hold_id"], "--released-by", "Ada", "--reason", "closed")
    assert not released["active"]
    assert line.document("retention-plan")["counts"]["planned"] == 4
    assert line.document("hold", "add", *why, code=1)["error"]["code"] == "hold"
    assert line.document("hold", "add", "--record", "r1", *why, code=2)


def test_the_stop_switch_on_the_command_line_8_2(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = line.document("retention-plan")["plan_id"]
    monkeypatch.setenv("FALLOW_STOP_FILE", str(tmp_path / "stop"))
    (tmp_path / "stop").write_text("wait")
    before = tree(line.root / CONVERSATION)
    assert line.document("retention-apply", plan, "--approved-by", "Ada", code=6)["error"]["code"] == "stopped"
    assert tree(line.root / CONVERSATION) == before
    (tmp_path / "stop").unlink()
    # A Prefect server that is named and does not answer cannot say that the switch is off.
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    refused = line.document("retention-apply", plan, "--approved-by", "Ada", code=6)
    assert "fallow_stop" in refused["error"]["message"]
    monkeypatch.delenv("PREFECT_API_URL")
    assert line.document("retention-apply", plan, "--approved-by", "Ada")["applied"] == 4


def test_a_certificate_is_made_verified_and_altered_16(line: Line, signing: Path, tmp_path: Path) -> None:
    plan = line.document("retention-plan")["plan_id"]
    assert line.document("certificate", plan, code=1)["error"]["code"] == "plan_state"
    line.document("retention-apply", plan, "--approved-by", "Ada", "--key", signing)
    file = tmp_path / "certificate.json"
    code, out, err = line("certificate", plan, "--out", file, "--key", signing, "--store", line.root)
    assert (code, out) == (0, "")
    assert "Merkle root" in err
    assert line("certificate", plan, "--out", file, "--store", line.root)[0] == 2  # nothing is overwritten
    code, out, _ = line("certificate", plan, "--csv", "--store", line.root)
    assert (code, len(out.splitlines())) == (0, 5)
    assert line.document("certificate", plan)["totals"] == {"suppressed": 4}
    proof = line.document("verify", file, "--operators", tmp_path / "operators.json", store=False)
    assert (proof["ok"], proof["problems"]) == (True, [])
    assert [note for note in proof["notes"] if "sealed by Ada" in note]
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"outcome":"suppressed"', b'"outcome":"suppresse!"', 1))
    assert not line.document("verify", file, code=1, store=False)["ok"]
    code, out, _ = line("verify", file)
    assert (code, "NOT to be trusted" in out) == (1, True)
    code, out, _ = line("retention-plan", "--json", "--store", line.root)
    file.write_text(out)
    assert line.document("verify", file, store=False)["kind"] == "plan"
    assert line("verify", tmp_path / "nowhere.json")[0] == 2


def test_drift_on_the_command_line_16(line: Line) -> None:
    assert line.document("drift", "--detailed-exitcode")["count"] == 0
    path = line.root / CONVERSATION / "k0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "retention_state": "suppressed"}))
    found = line.document("drift", "--detailed-exitcode", code=10)
    assert found["kinds"] == {"suppressed_without_plan": 1}
    assert line.document("drift")["count"] == 1
    code, out, _ = line("drift", "--store", line.root)
    assert (code, "names no plan" in out) == (0, True)
