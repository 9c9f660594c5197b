"""What models were already paid for, kept between runs in the user's cache folder (SPEC §3.6).

One SQLite file for all stores: a rating belongs to a content, a model and a purpose, wherever the content is
stored. It holds hashes and numbers, never a text. A run notes each call as it goes out and as its answer
comes, so that after a kill the next one pays for nothing that had arrived, and can say what was lost.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from fallow.providers.snapshot import cache_folder

from fallow.model.times import wall_clock

_NAME: Final = "model-answers.sqlite3"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS ratings (key BLOB PRIMARY KEY, rating REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sent_calls (
    call INTEGER PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, sent_at INTEGER NOT NULL, rows INTEGER NOT NULL,
    answer TEXT
);
CREATE TABLE IF NOT EXISTS dialects (endpoint TEXT PRIMARY KEY, dialect TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
    marker TEXT PRIMARY KEY, endpoint TEXT NOT NULL, job TEXT, submitted_at INTEGER NOT NULL, content TEXT NOT NULL
);
"""
_PIECE: Final = 500
#: A call of a process of another machine counts as lost when it is older than this, in microseconds.
_LONG_AGO: Final = 3_600 * 1_000_000


class AnswersOnDisk:
    """Paid answers in a file; safe beside other threads and processes (:class:`fallow.importance.asking.PaidAnswers`).

    Args:
        path: the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)

    @classmethod
    def of_user(cls) -> AnswersOnDisk | None:
        """The file in the user's cache folder; None where there is no such folder, or it takes no file."""
        folder = cache_folder()
        if folder is None:
            return None
        try:
            return cls(folder / _NAME)
        except (OSError, sqlite3.DatabaseError):
            return _anew(folder / _NAME)

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._file_answers()
            self._connection.close()

    def known(self, keys: Collection[str]) -> dict[str, float]:
        """As :meth:`PaidAnswers.known`."""
        found: dict[str, float] = {}
        wanted = list(keys)
        with self._lock:
            self._file_answers()
        for start in range(0, len(wanted), _PIECE):
            piece = [bytes.fromhex(key) for key in wanted[start : start + _PIECE]]
            marks = ",".join("?" * len(piece))
            query = f"SELECT key, rating FROM ratings WHERE key IN ({marks})"  # noqa: S608 - only question marks
            with self._lock:
                found.update((key.hex(), rating) for key, rating in self._connection.execute(query, piece))
        return found

    def sent(self, rows: int) -> int:
        """As :meth:`PaidAnswers.sent`."""
        with self._lock:
            done = self._connection.execute(
                "INSERT INTO sent_calls (host, pid, sent_at, rows) VALUES (?, ?, ?, ?)",
                (self._host, self._pid, wall_clock(), rows),
            )
        return done.lastrowid or 0

    def answered(self, call: int, ratings: Mapping[str, float]) -> None:
        """As :meth:`PaidAnswers.answered`. One statement: the threads that call this have no time to wait in turn."""
        text = json.dumps(dict(ratings))
        with self._lock:
            if call:
                self._connection.execute("UPDATE sent_calls SET answer = ? WHERE call = ?", (text, call))
            else:
                self._connection.execute(
                    "INSERT INTO sent_calls (host, pid, sent_at, rows, answer) VALUES (?, ?, ?, ?, ?)",
                    (self._host, self._pid, wall_clock(), len(ratings), text),
                )

    def _file_answers(self) -> None:
        """Moves what calls were answered to where it is looked up; the caller holds the lock."""
        if self._connection.execute("SELECT 1 FROM sent_calls WHERE answer IS NOT NULL LIMIT 1").fetchone() is None:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        rows = self._connection.execute("SELECT call, answer FROM sent_calls WHERE answer IS NOT NULL").fetchall()
        pairs = [(bytes.fromhex(key), rating) for _, answer in rows for key, rating in json.loads(answer).items()]
        self._connection.executemany("INSERT OR REPLACE INTO ratings VALUES (?, ?)", pairs)
        self._connection.executemany("DELETE FROM sent_calls WHERE call = ?", [(call,) for call, _ in rows])
        self._connection.execute("COMMIT")

    def lost(self) -> list[int]:
        """As :meth:`PaidAnswers.lost`."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            query = "SELECT call, host, pid, sent_at, rows FROM sent_calls WHERE answer IS NULL"
            calls = self._connection.execute(query).fetchall()
            old = wall_clock() - _LONG_AGO
            dead = [
                (call, rows)
                for call, host, pid, sent_at, rows in calls
                if (sent_at < old if host != self._host else not self._lives(pid))
            ]
            self._connection.executemany("DELETE FROM sent_calls WHERE call = ?", [(call,) for call, _ in dead])
            self._connection.execute("COMMIT")
        return [rows for _, rows in dead]

    def _lives(self, pid: int) -> bool:
        if pid == self._pid:
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True

    def dialect(self, endpoint: str) -> dict[str, Any]:
        """What is remembered of how an endpoint wants to be asked; empty where nothing is."""
        with self._lock:
            row = self._connection.execute("SELECT dialect FROM dialects WHERE endpoint = ?", (endpoint,)).fetchone()
        value = json.loads(row[0]) if row else {}
        return value if isinstance(value, dict) else {}

    def remember(self, endpoint: str, dialect: Mapping[str, Any]) -> None:
        """Keeps how an endpoint wants to be asked."""
        with self._lock:
            self._connection.execute(
                "INSERT OR REPLACE INTO dialects VALUES (?, ?)", (endpoint, json.dumps(dict(dialect), sort_keys=True))
            )

    def begin_job(self, marker: str, endpoint: str, content: Mapping[str, Any]) -> None:
        """Notes a batch job that is about to be submitted, and what its calls are about."""
        with self._lock:
            self._connection.execute(
                "INSERT OR REPLACE INTO jobs VALUES (?, ?, NULL, ?, ?)",
                (marker, endpoint, wall_clock(), json.dumps(content)),
            )

    def name_job(self, marker: str, job: str) -> None:
        """Notes what the endpoint calls a job that it took."""
        with self._lock:
            self._connection.execute("UPDATE jobs SET job = ? WHERE marker = ?", (job, marker))

    def jobs(self, endpoint: str) -> list[tuple[str, str | None, dict[str, Any]]]:
        """The jobs under way there: marker, the endpoint's name for it where it is known, content."""
        query = "SELECT marker, job, content FROM jobs WHERE endpoint = ? ORDER BY submitted_at, marker"
        with self._lock:
            rows = self._connection.execute(query, (endpoint,)).fetchall()
        return [(marker, job, json.loads(content)) for marker, job, content in rows]

    def end_job(self, marker: str) -> None:
        """Forgets a job whose answers are kept, or that never was."""
        with self._lock:
            self._connection.execute("DELETE FROM jobs WHERE marker = ?", (marker,))


def _anew(path: Path) -> AnswersOnDisk | None:
    """A new file in the place of a damaged one: it is a cache."""
    try:
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)
        return AnswersOnDisk(path)
    except (OSError, sqlite3.DatabaseError):
        return None
