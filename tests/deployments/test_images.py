"""compose.yaml, the image and the Kubernetes template: checked as far as that goes without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from fallow.model.settings import SETTINGS
from tests.building import build
from tests.conftest import REPOSITORY
from tests.prefect_server import PrefectServer

FOLDER = REPOSITORY / "deployments"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
TEMPLATE: dict[str, Any] = json.loads((FOLDER / "kubernetes-base-job-template.json").read_text(encoding="utf-8"))
#: The keys of the Compose Specification that are used here; anything else is a typo until somebody adds it.
TOP = {"name", "services", "volumes"}
KEYS = {
    *("image", "build", "read_only", "tmpfs", "cap_drop", "security_opt", "init", "command", "environment", "env_file"),
    *("volumes", "ports", "depends_on", "healthcheck", "restart", "profiles", "stop_grace_period"),
}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def dockerfile() -> list[tuple[str, str]]:
    """The instructions: lines joined, comments gone."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(word, rest) for line in lines.splitlines() if line.strip() for word, _, rest in [line.partition(" ")]]


def faults(document: dict[str, Any]) -> list[str]:
    found = [f"unknown key {key}" for key in document if key not in TOP and not key.startswith("x-")]
    services = document["services"]
    for name, service in services.items():
        found += [f"{name}: unknown key {key}" for key in set(service) - KEYS]
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                found.append(f"{name}: waits for {other}, which is no service")
            elif how["condition"] not in CONDITIONS:
                found.append(f"{name}: unknown condition {how['condition']}")
            elif how["condition"] == "service_healthy" and "healthcheck" not in services[other]:
                found.append(f"{name}: waits for the health of {other}, which has no check")
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", volume).split(":")[0]
            if source not in document["volumes"]:
                found.append(f"{name}: the volume {source} is not declared")
        for port in service.get("ports", []):
            if not port.startswith("127.0.0.1:"):
                found.append(f"{name}: {port} is open to the network")
    return found


def test_compose_is_sound() -> None:
    assert faults(COMPOSE) == []
    assert set(SERVICES) == {"database", "server", "deploy", "worker", "mongodb"}
    assert SERVICES["mongodb"]["profiles"] == ["mongodb"], "MongoDB is optional"


def test_the_check_above_can_fail() -> None:
    broken = json.loads(json.dumps(COMPOSE))
    broken["services"]["worker"]["volums"] = []
    broken["services"]["worker"]["depends_on"]["nobody"] = {"condition": "service_healthy"}
    broken["services"]["server"]["ports"] = ["4200:4200"]
    broken["services"]["server"]["volumes"] = ["elsewhere:/x"]
    del broken["services"]["database"]["healthcheck"]
    told = "\n".join(faults(broken))
    for fault in ("volums", "nobody", "open to the network", "elsewhere", "has no check"):
        assert fault in told


def test_every_variable_of_compose_stands_in_the_environment_file_and_every_setting_there_exists() -> None:
    text = (FOLDER / "env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^#? ?([A-Z][A-Z0-9_]+)=", text, re.M))
    used = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text(encoding="utf-8")))
    assert used <= named
    of_compose = {"POSTGRES_PASSWORD", "PREFECT_AUTH_STRING", "PREFECT_UI_ADDRESS", "FALLOW_STORE_FOLDER"}
    secrets = {"NOTION_TOKEN", "FALLOW_ORACLE_PASSWORD", "OPENAI_API_KEY", "FALLOW_STORE"}
    assert named - of_compose - secrets <= {setting.env for setting in SETTINGS.values()}
    for line in text.splitlines():
        if re.match(r"^#? ?\w*(PASSWORD|TOKEN|KEY|AUTH_STRING)=", line):
            assert line.endswith("="), "no secret has a default"


def test_prefects_own_variables_exist() -> None:
    """Prefect ignores what it does not know, so a typo would leave a server without a password."""
    from prefect.settings.legacy import _get_settings_fields
    from prefect.settings.models.root import Settings

    known = set(_get_settings_fields(Settings))
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            if variable.startswith("PREFECT_"):
                assert variable in known, f"{name}: {variable}"
    for word, rest in dockerfile():
        if word == "ENV":
            for variable in re.findall(r"(PREFECT_\w+)=", rest):
                assert variable in known


def test_the_server_asks_who_calls_and_answers_its_own_pages_only() -> None:
    environment = SERVICES["server"]["environment"]
    assert ":?" in environment["PREFECT_SERVER_API_AUTH_STRING"], "compose refuses to start without it"
    assert environment["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].startswith("${PREFECT_UI_ADDRESS")
    assert SERVICES["worker"]["environment"]["PREFECT_API_AUTH_STRING"] == environment["PREFECT_SERVER_API_AUTH_STRING"]


def test_the_commands_are_those_of_prefect_yaml() -> None:
    head = (FOLDER / "prefect.yaml").read_text(encoding="utf-8")
    (script,) = [line for line in SERVICES["deploy"]["command"] if "deploy --all" in line]
    for command in ("prefect work-pool create fallow --type process", "prefect --no-prompt deploy --all"):
        assert command in head
        assert command in script
    assert shlex.split(script), "the script is one that a shell can read"
    done = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.server
def test_the_health_check_tells_a_healthy_server_from_none(prefect_server: PrefectServer) -> None:
    """compose's own check, against a real server on another port."""
    test = SERVICES["server"]["healthcheck"]["test"]
    code = test[-1]
    assert test[1:3] == ["python", "-c"]
    auth = {"PREFECT_SERVER_API_AUTH_STRING": "name:password"}
    for port, healthy in ((prefect_server.port, True), (1, False)):
        command = [sys.executable, "-c", code.replace("127.0.0.1:4200", f"127.0.0.1:{port}")]
        done = subprocess.run(command, env={**prefect_server.environment(), **auth}, capture_output=True, check=False)
        assert (done.returncode == 0) is healthy


def test_the_image_is_slim_and_runs_without_rights() -> None:
    steps = dockerfile()
    froms = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert all("-slim" in image for image in froms)
    users = [rest for word, rest in steps if word == "USER"]
    assert users[-1] == "10001:10001"
    assert not [word for word, _ in steps if word == "ADD"]
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"(PASSWORD|TOKEN|SECRET|API_KEY)\s*=", text)
    assert ("STOPSIGNAL", "SIGINT") in steps
    required = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"\.\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(required["optional-dependencies"])
    assert required["requires-python"] == ">=3.11"


def test_what_the_image_copies_is_enough_to_run_every_flow(tmp_path: Path) -> None:
    """The wheel built from the files that COPY names: every deployment's entrypoint can be imported from it."""
    names = [
        source for word, rest in dockerfile() if word == "COPY" and "--from" not in rest for source in rest.split()[:-1]
    ]
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    (tmp_path / "source").mkdir()
    for name in names:
        assert f"\n!{name}\n" in ignored, f"{name} is kept from the build"
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / "source" / name)
    entrypoints = yaml.safe_load((FOLDER / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    modules = sorted({item["entrypoint"].split(":")[0] for item in entrypoints})
    wheel = build("wheel", tmp_path / "source", tmp_path / "wheels")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if p != {str(REPOSITORY)!r}]; sys.path.insert(0, '.');"
        f"sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()];"
        f"import importlib; [importlib.import_module(m) for m in {modules!r}];"
        f"import fallow; from importlib.resources import files;"
        f"print(fallow.__file__, files('fallow.deployments') / 'prefect.yaml')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "installed", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(REPOSITORY) not in done.stdout
    assert (tmp_path / "installed" / "fallow" / "deployments" / "prefect.yaml").is_file()


def placeholders(value: Any) -> set[str]:
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", json.dumps(value)))


def test_the_kubernetes_template_is_consistent_and_grants_nothing() -> None:
    from jsonschema import Draft202012Validator

    variables = TEMPLATE["variables"]
    Draft202012Validator.check_schema(variables)
    assert placeholders(TEMPLATE["job_configuration"]) == set(variables["properties"])
    for name, field in variables["properties"].items():
        assert field.get("description"), name
        if field.get("default") is not None:
            Draft202012Validator({**field, "definitions": variables["definitions"]}).validate(field["default"])
    pod = TEMPLATE["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001, "the image's user"
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.server
def test_a_prefect_server_takes_the_kubernetes_template(prefect_api: Any) -> None:
    body = {"name": "fallow-on-kubernetes", "type": "kubernetes", "base_job_template": TEMPLATE}
    prefect_api.request("POST", "/work_pools/", json=body)
    try:
        found = prefect_api.read_work_pool("fallow-on-kubernetes")
        assert found.base_job_template == TEMPLATE
    finally:
        prefect_api.request("DELETE", "/work_pools/{name}", path_params={"name": "fallow-on-kubernetes"})
