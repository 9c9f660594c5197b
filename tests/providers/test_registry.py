"""Kinds of stores as entry points: ours as anyone's; a bad one is named and the others work (SPEC §12)."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fallow.model.errors import ProviderMissingError, UsageError
from fallow.port import registry
from fallow.port.kinds import StoreKind
from fallow.port.parts import part
from fallow.port.protocol import Capabilities
from fallow.port.registry import GROUP, kind_of, open_provider, registered, scratch_backend
from tests.conftest import REPOSITORY

KIND = """
from fallow.port.kinds import StoreKind
from fallow.port.protocol import Capabilities
def opening(uri, zones):
    import a_driver_that_nobody_has
KIND = StoreKind(name="{name}", schemes=({schemes}), open=opening, capabilities=Capabilities(kind="{name}"),
                 address="{name}://x", docs="", install="{name}-store", packages=("a_driver_that_nobody_has",))
"""


def plug_in(folder: Path, name: str, code: str, points: str, group: str = GROUP) -> None:
    """A distribution as an installer leaves it behind."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n", encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def ours() -> list[StoreKind]:
    """The kinds of fallow's own distribution, whatever plug-ins are installed beside it."""
    found = [item.kind for item in registered() if item.origin.startswith("fallow (") and item.kind is not None]
    return sorted(found, key=lambda kind: kind.name)


def test_ours_are_registered_in_pyproject_as_anyones() -> None:
    points = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"][GROUP]
    assert sorted(points) == [kind.name for kind in ours()]
    assert all(not item.problem for item in registered())


def test_a_kind_says_all_that_is_asked_of_it() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for kind in ours():
        assert kind.docs.endswith("."), kind.name
        assert kind.install == "" or kind.install == f"fallow[{kind.name}]"
        assert not kind.install or kind.name in extras
        assert bool(kind.install) == bool(kind.packages), kind.name


def test_one_that_raises_on_import_is_named_and_the_others_work(site: Path, sample_store: Path) -> None:
    plug_in(site, "broken-store", "raise RuntimeError('out of order')", "broken = broken_store:KIND")
    with open_provider(sample_store) as provider:
        assert provider.capabilities.kind == "filesystem"
    with pytest.raises(ProviderMissingError, match=r"broken-store \(broken_store:KIND\) .*RuntimeError: out of order"):
        kind_of("broken://x")
    (found,) = [item for item in registered() if item.kind is None]
    assert found.name == "broken"


def test_one_that_gives_something_else_is_named(site: Path) -> None:
    plug_in(site, "odd-store", "KIND = 7", "odd = odd_store:KIND")
    with pytest.raises(ProviderMissingError, match="no StoreKind but a int"):
        kind_of("odd://x")


def test_two_for_one_scheme_are_refused_and_both_named(site: Path) -> None:
    for name in ("first", "second"):
        code = KIND.format(name=name, schemes=f"'{name}', 'shared'")
        plug_in(site, f"{name}-store", code, f"{name} = {name}_store:KIND")
    with pytest.raises(ProviderMissingError, match=r"two providers serve 'shared://': first-store .* and second-store"):
        open_provider("shared://x")
    assert kind_of("first://x").name == "first"


def test_nobody_takes_the_place_of_one_of_ours_quietly(site: Path, sample_store: Path) -> None:
    plug_in(site, "taker", KIND.format(name="taker", schemes="'file',"), "taker = taker:KIND")
    with pytest.raises(ProviderMissingError, match=r"fallow \(fallow.providers.kinds:FILESYSTEM\) and taker"):
        open_provider(str(sample_store))


def test_a_missing_package_is_one_line_with_the_command(site: Path) -> None:
    plug_in(site, "far-store", KIND.format(name="far", schemes="'far',"), "far = far_store:KIND")
    with pytest.raises(ProviderMissingError) as caught:
        open_provider("far://x")
    assert str(caught.value.hint) == "pip install 'far-store'"
    assert "a_driver_that_nobody_has" in caught.value.message
    assert "\n" not in caught.value.message
    with pytest.raises(ProviderMissingError) as caught:
        open_provider("nosuch://x")
    assert "far (pip install 'far-store')" in str(caught.value.hint)


def test_an_unknown_scheme_lists_those_there_are() -> None:
    with pytest.raises(ProviderMissingError) as caught:
        open_provider("mongo://host/db")
    hint = str(caught.value.hint)
    assert "did you mean mongodb://" in hint
    for scheme in ("file", "mongodb", "mongodb+srv", "notion", "oracle"):
        assert scheme in hint


def test_an_address_may_be_a_path(sample_store: Path) -> None:
    with open_provider(sample_store) as first, open_provider(str(sample_store)) as second:
        assert first.identity() == second.identity()
    assert scratch_backend(sample_store).name == "filesystem"


@pytest.mark.parametrize("address", ["", "  ", "mongodb://[::1"])
def test_no_address_is_wrong_usage(address: str) -> None:
    with pytest.raises(UsageError):
        open_provider(address)


@pytest.mark.parametrize(
    "wrong",
    [
        {"schemes": ()},
        {"schemes": ("SQLite",)},
        {"schemes": ("sqlite://",)},
        {"capabilities": Capabilities(kind="another")},
        {"name": ""},
    ],
)
def test_a_kind_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    good = {
        "name": "sqlite",
        "schemes": ("sqlite",),
        "open": registry.open_provider,
        "capabilities": Capabilities(kind="sqlite"),
        "address": "sqlite:///x",
        "docs": "",
    }
    StoreKind(**good)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        StoreKind(**{**good, **wrong})  # type: ignore[arg-type]


def test_what_is_not_registered_says_what_to_do() -> None:
    with pytest.raises(ProviderMissingError, match="nothing is registered as 'nothing'"):
        part("fallow.models", "nothing")


def test_a_part_that_lacks_a_package_says_what_brings_it(site: Path) -> None:
    plug_in(site, "modelless", "import a_driver_that_nobody_has", "modelless = modelless", "fallow.models")
    with pytest.raises(ProviderMissingError) as caught:
        part("fallow.models", "modelless", install="fallow[models]")
    assert caught.value.hint == "pip install 'fallow[models]'"


def test_doctor_names_the_broken_one(site: Path) -> None:
    plug_in(site, "broken-store", "raise RuntimeError('out of order')", "broken = broken_store:KIND")
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from fallow.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--json"], capture_output=True, text=True, check=False, cwd=site
    )
    checks = {item["check"]: item for item in json.loads(done.stdout)["checks"]}
    assert checks["provider broken"]["state"] == "warning"
    assert "out of order" in checks["provider broken"]["detail"]
    assert checks["provider mongodb"]["state"] == "ok"
