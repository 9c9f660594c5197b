"""What stands in for Oracle in tests: an oracledb-shaped pool whose Oracle SQL runs on PostgreSQL. It is not Oracle.

It covers the statements of providers/oracle_statements.py: binds, array DML with row counts and batch errors,
JSON_MERGEPATCH, DBMS_LOB.COMPARE, the data dictionary, Arrow batches, '' as NULL, zones dropped by the driver,
ORA and DPY codes. It covers no wire protocol, no optimizer, no undo, no character-set conversion, no PL/SQL,
and says nothing about grants, byte lengths and NUMBER rounding as Oracle does them.

PostgreSQL comes from Debian's package, runs as a process of its own on loopback on a free port with its data in
a temporary folder, and is stopped by its pid. Where it is missing, tests skip.
"""

from __future__ import annotations

import array
import datetime as dt
import decimal
import functools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import oracledb
import psycopg
import pyarrow as pa
import pytest

from tests.servers.mongodb import free_port

SCHEMA = "MEMORIZZ"

#: Oracle's functions and dictionary views, as far as fallow's statements call them.
PRELUDE = r"""
CREATE SCHEMA ora; CREATE SCHEMA dbms_lob; CREATE SCHEMA memorizz;
ALTER ROLE memorizz SET search_path = ora, memorizz, pg_catalog;
CREATE TABLE ora.dual (dummy varchar(1)); INSERT INTO ora.dual VALUES ('X');
CREATE FUNCTION ora.nvl(text, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce($1, $2) $$;
CREATE FUNCTION ora.nvl(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce($1, $2) $$;
CREATE FUNCTION dbms_lob.getlength(text) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT length($1) $$;
CREATE FUNCTION ora.sys_extract_utc(timestamptz) RETURNS timestamp LANGUAGE sql STABLE
  AS $$ SELECT $1 AT TIME ZONE 'UTC' $$;
CREATE FUNCTION ora.sys_context(text, text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE $2 WHEN 'DB_UNIQUE_NAME' THEN 'STANDIN' WHEN 'CON_NAME' THEN upper(current_database())
                 WHEN 'CURRENT_SCHEMA' THEN 'MEMORIZZ' END $$;
CREATE FUNCTION dbms_lob.compare(text, text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN $1 = $2 THEN 0 WHEN $1 < $2 THEN -1 WHEN $1 > $2 THEN 1 END $$;
CREATE FUNCTION ora.is_json(text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$
  BEGIN IF $1 IS NULL THEN RETURN NULL; END IF; PERFORM $1::json; RETURN true;
  EXCEPTION WHEN others THEN RETURN false; END $$;
CREATE FUNCTION ora.merged(a jsonb, b jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
  DECLARE k text; v jsonb; r jsonb;
  BEGIN
    IF jsonb_typeof(b) <> 'object' THEN RETURN b; END IF;
    r := CASE WHEN jsonb_typeof(a) = 'object' THEN a ELSE '{}'::jsonb END;
    FOR k, v IN SELECT * FROM jsonb_each(b) LOOP
      IF jsonb_typeof(v) = 'null' THEN r := r - k;
      ELSE r := r || jsonb_build_object(k, ora.merged(r -> k, v)); END IF;
    END LOOP;
    RETURN r;
  END $$;
CREATE FUNCTION ora.json_mergepatch(text, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT ora.merged($1::jsonb, $2::jsonb)::text $$;
CREATE VIEW ora.all_tab_columns AS
  SELECT upper(table_schema) AS owner, upper(table_name) AS table_name, upper(column_name) AS column_name,
    CASE data_type WHEN 'numeric' THEN 'NUMBER' WHEN 'text' THEN 'CLOB' WHEN 'character varying' THEN 'VARCHAR2'
      WHEN 'bytea' THEN 'RAW' WHEN 'timestamp without time zone' THEN 'TIMESTAMP(6)' WHEN 'ARRAY' THEN 'VECTOR'
      ELSE upper(data_type) END AS data_type,
    ordinal_position AS column_id
  FROM information_schema.columns WHERE table_schema = 'memorizz';
CREATE VIEW ora.all_objects AS
  SELECT upper(n.nspname) AS owner, upper(c.relname) AS object_name, 'TABLE' AS object_type, c.oid::bigint AS object_id,
    timestamp '2026-01-01' + c.oid::bigint * interval '1 second' AS created
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r';
"""
_TYPES = (
    (r"\bVECTOR\s*(\([^)]*\))?", "REAL[]"),
    (r"\bRAW\s*\(\d+\)", "BYTEA"),
    (r"\bVARCHAR2\s*\(", "VARCHAR("),
    (r"\bCLOB\b", "TEXT"),
    (r"\bNUMBER\b", "NUMERIC"),
    (r"\bTIMESTAMP\b(?=[\s,)]*(,|\)|DEFAULT|$))", "TIMESTAMP"),
    (r"(\w+)\s+IS\s+JSON\b", r"ora.is_json(\1)"),
)
_BIND = re.compile(r"'(?:[^']|'')*'|(?<![:\w]):([A-Za-z_]\w*)")
_CODES = {
    "23505": ("ORA-00001", oracledb.IntegrityError),
    "42P01": ("ORA-00942", oracledb.DatabaseError),
    "42P07": ("ORA-00955", oracledb.DatabaseError),
    "42703": ("ORA-00904", oracledb.DatabaseError),
    "42501": ("ORA-01031", oracledb.DatabaseError),
    "23502": ("ORA-01400", oracledb.IntegrityError),
    "23514": ("ORA-02290", oracledb.IntegrityError),
    "40P01": ("ORA-00060", oracledb.DatabaseError),
    "22001": ("ORA-12899", oracledb.DatabaseError),
    "22003": ("ORA-01438", oracledb.DatabaseError),
    "25006": ("ORA-16000", oracledb.DatabaseError),
    "57014": ("DPY-4024", oracledb.OperationalError),
}
_ARROW = {
    20: pa.int64(),
    23: pa.int64(),
    25: pa.large_string(),
    1043: pa.large_string(),
    1114: pa.timestamp("us"),
    17: pa.large_binary(),
    1021: pa.list_(pa.float32()),
}


@functools.lru_cache(4096)
def translated(statement: str) -> tuple[str, tuple[str, ...]]:
    """Oracle SQL as PostgreSQL takes it, and the names of its binds."""
    text = re.sub(r"\s+RETURNING\s+CLOB\s*\)", ")", statement, flags=re.IGNORECASE)
    text = re.sub(r"^(DROP TABLE \S+) PURGE$", r"\1", text)
    text = re.sub(r"\bSYSTIMESTAMP\b", "clock_timestamp()", text)
    if text.upper().startswith(("CREATE TABLE", "ALTER TABLE")):
        for pattern, replacement in _TYPES:
            text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
        text = re.sub(r"^(ALTER TABLE \S+ ADD)\s*\((.*)\)$", r"\1 COLUMN \2", text)
    names: list[str] = []

    def bind(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0].replace("%", "%%")
        names.append(match[1].lower())
        return f"%({match[1].lower()})s"

    return _BIND.sub(bind, text), tuple(dict.fromkeys(names))


class Detail:
    """What oracledb puts into its errors and gives for each refused row."""

    def __init__(self, full_code: str, message: str, offset: int = 0) -> None:
        self.full_code, self.message, self.offset = full_code, f"{full_code}: {message}", offset
        self.code = int(full_code[4:]) if full_code.startswith("ORA-") else 0
        self.isrecoverable = full_code == "DPY-4011"

    def __str__(self) -> str:
        return self.message


def oracle_error(error: psycopg.Error) -> oracledb.Error:
    """PostgreSQL's error as Oracle's, with the text that a server would quote in it."""
    state = error.sqlstate or ""
    code, kind = _CODES.get(state, ("ORA-00900", oracledb.DatabaseError))
    if not state and isinstance(error, psycopg.OperationalError):
        code, kind = "DPY-4011", oracledb.OperationalError
    return kind(Detail(code, str(error)))


def _to_postgres(value: Any) -> Any:
    if isinstance(value, str):
        return value or None  # '' is NULL
    if isinstance(value, array.array):
        return list(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)  # the thin driver drops the zone
    return int(value) if isinstance(value, bool) else value


def _from_postgres(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral() else float(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _bound(names: tuple[str, ...], binds: Any) -> dict[str, Any]:
    given = {str(name).lower(): _to_postgres(value) for name, value in (binds or {}).items()}
    if set(given) != set(names):
        raise oracledb.DatabaseError(Detail("ORA-01036", f"binds {sorted(set(given) ^ set(names))}"))
    return given


class Cursor:
    """As oracledb's, for DML, DDL and small reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = psycopg.ClientCursor(connection.postgres)
        self._errors: list[Detail] = []
        self._counts: list[int] = []

    def setinputsizes(self, **sizes: Any) -> None:
        """Types of binds are PostgreSQL's own here; that every named one is declared is checked."""
        self._sizes = sizes

    def execute(self, statement: str, binds: Any = None) -> Cursor:
        text, names = translated(statement)
        self._connection.standin.meets(self._connection, text)
        try:
            self._cursor.execute(text, _bound(names, binds))
        except psycopg.Error as error:
            raise oracle_error(error) from None
        if text.upper().startswith(("CREATE", "ALTER", "DROP")):
            self._connection.commit()  # Oracle commits on DDL
        return self

    def executemany(
        self, statement: str, rows: list[Any], *, batcherrors: bool = False, arraydmlrowcounts: bool = False
    ) -> None:
        self._errors, self._counts = [], []
        for place, row in enumerate(rows):
            self._cursor.execute("SAVEPOINT one_row")
            try:
                self.execute(statement, row)
                self._counts.append(self._cursor.rowcount)
                self._cursor.execute("RELEASE one_row")
            except oracledb.Error as error:
                detail = error.args[0]
                if (
                    not batcherrors
                    or detail.full_code.startswith("DPY")
                    or detail.code in (942, 904, 1031, 1036, 16000)
                ):
                    raise
                self._cursor.execute("ROLLBACK TO one_row")
                detail.offset = place
                self._errors.append(detail)
                self._counts.append(0)
        assert arraydmlrowcounts

    def getbatcherrors(self) -> list[Detail]:
        return self._errors

    def getarraydmlrowcounts(self) -> list[int]:
        return self._counts

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(map(_from_postgres, row)) for row in self._cursor.fetchall()]


class DataFrame:
    """As oracledb's: nothing but Arrow's stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Connection:
    """As oracledb's, in a transaction until it commits."""

    call_timeout = 0

    def __init__(self, standin: OracleStandin) -> None:
        self.standin = standin
        self.postgres = psycopg.connect(standin.address, autocommit=False)

    @property
    def version(self) -> str:
        return "12.1.0.2.0" if self.standin.fault == "old" else "23.0.0.0.0"

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        loses = self.standin.loses
        if loses is not None:
            kind, left = loses
            self.standin.loses = (kind, left - 1) if left else None
            if not left:
                if kind == "after":
                    self.postgres.commit()
                self.postgres.close()
                raise oracledb.OperationalError(Detail("DPY-4011", "the database closed the connection"))
        self.postgres.commit()

    def rollback(self) -> None:
        try:
            self.postgres.rollback()
        except psycopg.Error as error:
            raise oracle_error(error) from None

    def close(self) -> None:
        self.postgres.close()

    def fetch_df_batches(self, statement: str, parameters: Any = None, size: int = 1000) -> Iterator[DataFrame]:
        text, names = translated(statement)
        self.standin.meets(self, text)
        cursor = None
        try:
            plain = psycopg.ClientCursor(self.postgres).mogrify(text, _bound(names, parameters))
            cursor = self.postgres.cursor(name="df" + uuid.uuid4().hex[:8])
            cursor.execute(plain.encode())
            schema = None
            while True:
                rows = cursor.fetchmany(size)
                if schema is None:
                    schema = pa.schema([(one.name.upper(), self._type(one)) for one in cursor.description])
                columns = [
                    pa.array([_from_postgres(row[place]) for row in rows], field.type)
                    for place, field in enumerate(schema)
                ]
                if rows:
                    self.standin.statements.append((statement, len(rows)))
                    yield DataFrame(pa.table(columns, schema=schema))
                    if self.standin.fault == "cut":
                        raise oracledb.OperationalError(Detail("DPY-4011", "the database closed the connection"))
                if len(rows) < size:
                    return
        except psycopg.Error as error:
            raise oracle_error(error) from None
        finally:
            if cursor is not None:
                with suppress(psycopg.Error):
                    cursor.close()

    @staticmethod
    def _type(column: Any) -> pa.DataType:
        if column.type_code == 1700:
            return pa.int64() if column.scale == 0 and column.precision else pa.float64()
        return _ARROW.get(column.type_code, pa.large_string())


class Pool:
    """As oracledb's: connections that are kept."""

    def __init__(self, standin: OracleStandin) -> None:
        self._standin = standin
        self._free: list[Connection] = []
        self._all: list[Connection] = []

    def acquire(self) -> Connection:
        if self._standin.fault == "down":
            raise oracledb.OperationalError(Detail("DPY-6005", "cannot connect to database"))
        if self._standin.fault == "denied":
            raise oracledb.DatabaseError(Detail("ORA-01017", f"invalid credential {OracleStandin.PASSWORD}"))
        if not self._free:
            self._free.append(Connection(self._standin))
            self._all.append(self._free[-1])
        return self._free.pop()

    def release(self, connection: Connection) -> None:
        if not connection.postgres.closed:
            self._free.append(connection)

    def close(self, force: bool = False) -> None:
        for connection in self._all:
            connection.close()
        self._free.clear()


class OracleStandin:
    """A database for one test session; ``fault`` breaks it in the ways that the kit knows."""

    PASSWORD = "s3cret-of-the-standin"

    def __init__(self, address: str) -> None:
        self.address = address
        self.fault = ""
        #: Each statement that read rows, with how many it read.
        self.statements: list[tuple[str, int]] = []
        #: The connection is lost at a commit: ``before`` or ``after`` it was carried out, and how many go well first.
        self.loses: tuple[str, int] | None = None
        #: Called before each statement with its connection and text.
        self.before: Any = None

    def pool(self) -> Pool:
        return Pool(self)

    def meets(self, connection: Connection, text: str) -> None:
        """What a statement meets on its way."""
        if self.before is not None:
            self.before(connection, text)
        if self.fault == "down":
            raise oracledb.OperationalError(Detail("DPY-4011", "the database closed the connection"))
        try:
            if self.fault == "slow":
                connection.postgres.execute("SET LOCAL statement_timeout = 50")
                connection.postgres.execute("SELECT pg_sleep(30)")
            if self.fault == "read_only" and text.startswith(("UPDATE", "INSERT", "DELETE")):
                connection.postgres.execute("SET TRANSACTION READ ONLY")
        except psycopg.Error as error:
            raise oracle_error(error) from None


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).parent if named else None


@contextmanager
def oracle_standin() -> Iterator[OracleStandin]:
    """The stand-in on a PostgreSQL server of its own."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL for the Oracle stand-in: install Debian's package postgresql")
    folder = Path(tempfile.mkdtemp(prefix="fallow-postgres-"))
    # PostgreSQL does not run as root; Debian's package brings its user.
    as_user: dict[str, Any] = {"cwd": "/"}
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_user |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    port = free_port()
    data = folder / "data"
    server = None
    try:
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "memorizz", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            capture_output=True,
            check=False,
            **as_user,
        )
        assert made.returncode == 0, made.stderr.decode()
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "timezone": "UTC"}
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(port)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user)
        address = f"host=127.0.0.1 port={port} user=memorizz dbname=postgres"
        deadline = time.monotonic() + 90
        while True:
            try:
                with psycopg.connect(address, autocommit=True) as connection:
                    connection.execute(PRELUDE)
                break
            except psycopg.OperationalError:
                assert server.poll() is None, "PostgreSQL ended"
                assert time.monotonic() < deadline, "PostgreSQL did not start"
                time.sleep(0.05)
        yield OracleStandin(address)
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)
