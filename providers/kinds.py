"""The kinds of store that fallow brings: what ``pyproject.toml`` registers, as anyone's (SPEC §12).

No driver is imported here: this module is loaded whenever a store is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from fallow.providers.gaps import GAPS

from fallow.port.kinds import StoreKind, StoreSetting
from fallow.port.protocol import Capabilities, Provider
from fallow.port.scratch import Backend


def _folder(address: str, naive_timezone: Mapping[str, str]) -> Provider:
    from fallow.providers.filesystem import FilesystemProvider

    return FilesystemProvider.from_uri(address, naive_timezone)


def _beside_a_folder(address: str) -> Backend:
    from fallow.providers.conformance.scratch import FilesystemBackend
    from fallow.providers.filesystem import FilesystemProvider

    with FilesystemProvider.from_uri(address, {}) as provider:
        return FilesystemBackend(provider.root.parent)


FILESYSTEM = StoreKind(
    name="filesystem",
    schemes=("file",),
    open=_folder,
    capabilities=Capabilities(kind="filesystem", batch_size=500),
    address="file:///srv/memory, or a path",
    docs="A folder of JSON files; no server, conditional writes under the agents' own lock.",
    scratch=_beside_a_folder,
    gaps=GAPS["filesystem"],
)


def _mongodb(address: str, naive_timezone: Mapping[str, str]) -> Provider:
    from fallow.providers.mongodb import MongoDBProvider

    return MongoDBProvider.from_uri(address, naive_timezone)


def _beside_mongodb(address: str) -> Backend:
    from fallow.providers.conformance.scratch_mongodb import MongoDBBackend

    with _mongodb(address, {}):
        return MongoDBBackend(address)


MONGODB = StoreKind(
    name="mongodb",
    schemes=("mongodb", "mongodb+srv"),
    open=_mongodb,
    capabilities=Capabilities(kind="mongodb", batch_size=1000, drops_owners=True, max_row_bytes=2_000_000),
    address="mongodb://host:27017/database",
    docs="A database of MongoDB; conditional bulk writes with majority write concern.",
    install="fallow[mongodb]",
    packages=("pymongo", "bson"),
    scratch=_beside_mongodb,
    gaps=GAPS["mongodb"],
)


def _oracle(address: str, naive_timezone: Mapping[str, str]) -> Provider:
    from fallow.providers.oracle import OracleProvider

    return OracleProvider.from_uri(address, naive_timezone)


def _beside_oracle(address: str) -> Backend:
    from fallow.providers.conformance.scratch_oracle import OracleBackend

    with _oracle(address, {}):
        return OracleBackend.at(address)


ORACLE = StoreKind(
    name="oracle",
    schemes=("oracle",),
    open=_oracle,
    capabilities=Capabilities(kind="oracle", batch_size=1000, max_row_bytes=1_000_000, listing_rows=10_000),
    address="oracle://user@host:1521/service?schema=S",
    docs="A schema of Oracle Database; conditional updates, one commit a chunk.",
    settings=(StoreSetting("FALLOW_ORACLE_PASSWORD", "the password of the user in the address", True, True),),
    install="fallow[oracle]",
    packages=("oracledb",),
    scratch=_beside_oracle,
    gaps=GAPS["oracle"],
)


def _notion(address: str, naive_timezone: Mapping[str, str]) -> Provider:
    from fallow.providers.notion import NotionProvider

    return NotionProvider.from_uri(address, naive_timezone)


NOTION = StoreKind(
    name="notion",
    schemes=("notion",),
    open=_notion,
    capabilities=Capabilities(
        kind="notion",
        batch_size=50,
        conditional_write=False,
        atomic_touch=False,
        insert_if_absent=False,
        max_row_bytes=150_000,
        requests_per_second=3.0,
        listing_rows=2_000,
    ),
    address="notion://<data source id>",
    docs="A data source of Notion; three requests a second, no conditional write.",
    settings=(StoreSetting("NOTION_TOKEN", "the integration's secret", True, True),),
    install="fallow[notion]",
    packages=("notion_client", "httpx"),
    gaps=GAPS["notion"],
)
