"""All SQL of this provider. Tables are LangGraph's own, unqualified: the connection's search_path finds them."""

from __future__ import annotations

from typing import Final

#: What LangGraph's store has to be: its columns and their types, and how far its migrations have gone.
STORE_COLUMNS: Final = {
    "prefix": "text",
    "key": "text",
    "value": "jsonb",
    "created_at": "timestamp with time zone",
    "updated_at": "timestamp with time zone",
    "expires_at": "timestamp with time zone",
    "ttl_minutes": "integer",
}
VECTOR_COLUMNS: Final = ("prefix", "key", "field_name", "embedding", "created_at", "updated_at")
STORE_VERSION: Final = 3
VECTOR_VERSION: Final = 2

COLUMNS: Final = """
select a.attname, format_type(a.atttypid, null) from pg_attribute a
where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
PRIMARY_KEY: Final = """
select array_agg(a.attname::text order by a.attname) from pg_index i
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
where i.indrelid = to_regclass('store') and i.indisprimary
"""
IDENTITY: Final = """
select (select system_identifier from pg_control_system()),
       (select oid from pg_database where datname = current_database()), to_regclass('store')::oid
"""

#: fallow's own tables, made by the first write. ``born`` is the row's created_at: a row that was deleted and put
#: again is another one and inherits nothing.
TABLES: Final = """
create table if not exists fallow_fields (
    prefix text not null, key text not null, born timestamptz, fields jsonb not null, primary key (prefix, key)
);
create table if not exists fallow_suppressed (
    prefix text not null, key text not null, suffix text not null, value jsonb not null,
    created_at timestamptz, updated_at timestamptz, expires_at timestamptz, ttl_minutes int,
    fields jsonb not null, primary key (prefix, key, suffix)
);
create table if not exists fallow_rows (
    memory_type text not null, record_id text not null, body text not null, primary key (memory_type, record_id)
);
"""
#: The vectors keep their own type, so that they come back bit for bit.
VECTOR_TABLE: Final = """
create table if not exists fallow_suppressed_vectors (
    prefix text not null, key text not null, suffix text not null, field_name text not null, embedding {type},
    created_at timestamptz, updated_at timestamptz, primary key (prefix, key, suffix, field_name),
    foreign key (prefix, key, suffix) references fallow_suppressed (prefix, key, suffix) on delete cascade
);
"""
#: Makes of two first writes at once one after the other.
MAKING: Final = "select pg_advisory_xact_lock(7205759403792793601)"
HAS_TABLES: Final = """
select to_regclass('fallow_fields') is not null and to_regclass('fallow_suppressed') is not null
       and to_regclass('fallow_rows') is not null,
       to_regclass('store_vectors') is not null, to_regclass('fallow_suppressed_vectors') is not null
"""

_BORN: Final = "case when isfinite(s.{0}) then (extract(epoch from s.{0}) * 1000000)::bigint end"
_AGAIN: Final = f"'#put-again-' || coalesce({_BORN.format('created_at')}, 0)::text"
_SUFFIX: Final = f"""
case when exists (
    select from fallow_suppressed h where h.prefix = s.prefix and h.key = s.key and h.suffix = ''
) then {_AGAIN} else '' end
"""
_TIMES: Final = f"{_BORN.format('created_at')}, {_BORN.format('updated_at')}"
_LIVE_VECTOR: Final = """
(select v.embedding::text from store_vectors v
 where v.prefix = s.prefix and v.key = s.key order by v.field_name limit 1)
"""
_HIDDEN_VECTOR: Final = """
(select v.embedding::text from fallow_suppressed_vectors v
 where v.prefix = s.prefix and v.key = s.key and v.suffix = s.suffix order by v.field_name limit 1)
"""


def rows(where: str, *, tables: bool, live_vectors: bool = False, hidden_vectors: bool = False) -> str:
    """The statement that reads rows, shown and suppressed ones alike, in one snapshot.

    Its columns: prefix, key, suffix, value, creation and update in microseconds, fields, suppressed, embedding.

    Args:
        where: a condition over ``s.prefix`` and ``s.key``.
        tables: fallow's own tables are there.
        live_vectors: an embedding is asked for, and LangGraph's table of them is there.
        hidden_vectors: the same of fallow's.
    """
    vector = _LIVE_VECTOR if live_vectors else "null::text"
    if not tables:
        return (
            f"select s.prefix, s.key, '' as suffix, s.value::text, {_TIMES}, null::text, false, {vector}"
            f" from store s where {where}"
        )
    shown = (
        f"select s.prefix, s.key, {_SUFFIX} as suffix, s.value::text, {_TIMES}, f.fields::text, false, {vector}"
        " from store s left join fallow_fields f on f.prefix = s.prefix and f.key = s.key"
        f" and f.born is not distinct from s.created_at where {where}"
    )
    vector = _HIDDEN_VECTOR if hidden_vectors else "null::text"
    hidden = (
        f"select s.prefix, s.key, s.suffix, s.value::text, {_TIMES}, s.fields::text, true, {vector}"
        f" from fallow_suppressed s where {where}"
    )
    return f"{shown} union all {hidden}"


#: Locks rows so that nobody writes them between the check and the write. Nobody is waited for while rows are held,
#: so no agent's statement over several rows can be caught in a circle; with ``{wait}`` empty, one row is waited for.
LOCK_SHOWN: Final = """
select s.prefix, s.key from store s join unnest(%(prefixes)s::text[], %(keys)s::text[]) as p (prefix, key)
    on s.prefix = p.prefix and s.key = p.key order by s.prefix, s.key for update of s {wait}
"""
LOCK_HIDDEN: Final = """
select x.prefix, x.key, x.suffix from fallow_suppressed x
    join unnest(%(prefixes)s::text[], %(keys)s::text[]) as p (prefix, key)
    on x.prefix = p.prefix and x.key = p.key order by x.prefix, x.key, x.suffix for update of x {wait}
"""

_GIVEN: Final = """
given as (select * from unnest(%(prefixes)s::text[], %(keys)s::text[], %(suffixes)s::text[], %(fields)s::text[])
          as g (prefix, key, suffix, fields))
"""
#: Rows leave the store: row, expiry and vectors into fallow's tables, in one statement.
SUPPRESS: Final = f"""
with {_GIVEN},
moved as (delete from store s using given g where s.prefix = g.prefix and s.key = g.key returning s.*),
kept as (
    insert into fallow_suppressed
    select m.prefix, m.key, g.suffix, m.value, m.created_at, m.updated_at, m.expires_at, m.ttl_minutes, g.fields::jsonb
    from moved m join given g on g.prefix = m.prefix and g.key = m.key returning prefix, key, suffix
),
bare as (delete from fallow_fields f using moved m where f.prefix = m.prefix and f.key = m.key)
{{vectors}}
select prefix, key, suffix from kept
"""
SUPPRESS_VECTORS: Final = """
, vectors as (
    insert into fallow_suppressed_vectors
    select v.prefix, v.key, g.suffix, v.field_name, v.embedding, v.created_at, v.updated_at
    from store_vectors v join given g on g.prefix = v.prefix and g.key = v.key
)
"""
#: Rows come back, those whose key the agent has not put meanwhile.
RESTORE: Final = f"""
with {_GIVEN},
back as (
    insert into store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
    select x.prefix, x.key, x.value, x.created_at, x.updated_at, x.expires_at, x.ttl_minutes
    from fallow_suppressed x join given g on x.prefix = g.prefix and x.key = g.key and x.suffix = g.suffix
    order by x.prefix, x.key
    on conflict (prefix, key) do nothing returning prefix, key, created_at
),
fields as (
    insert into fallow_fields select b.prefix, b.key, b.created_at, g.fields::jsonb
    from back b join given g on g.prefix = b.prefix and g.key = b.key
    on conflict (prefix, key) do update set born = excluded.born, fields = excluded.fields
)
select prefix, key from back
"""
RESTORE_VECTORS: Final = """
insert into store_vectors (prefix, key, field_name, embedding, created_at, updated_at)
select v.prefix, v.key, v.field_name, v.embedding, v.created_at, v.updated_at
from fallow_suppressed_vectors v join unnest(%(prefixes)s::text[], %(keys)s::text[], %(suffixes)s::text[])
    as g (prefix, key, suffix) on v.prefix = g.prefix and v.key = g.key and v.suffix = g.suffix
"""
FORGET_HIDDEN: Final = """
delete from fallow_suppressed x using unnest(%(prefixes)s::text[], %(keys)s::text[], %(suffixes)s::text[])
    as g (prefix, key, suffix) where x.prefix = g.prefix and x.key = g.key and x.suffix = g.suffix
"""
SET_SHOWN: Final = f"""
with {_GIVEN}
insert into fallow_fields select s.prefix, s.key, s.created_at, g.fields::jsonb
from store s join given g on g.prefix = s.prefix and g.key = s.key
on conflict (prefix, key) do update set born = excluded.born, fields = excluded.fields
"""
SET_HIDDEN: Final = f"""
with {_GIVEN}
update fallow_suppressed x set fields = g.fields::jsonb from given g
where x.prefix = g.prefix and x.key = g.key and x.suffix = g.suffix
"""
INSERT_SHOWN: Final = """
insert into store (prefix, key, value, created_at, updated_at)
values (%s, %s, %s::jsonb, coalesce(%s, now()), coalesce(%s, now())) on conflict (prefix, key) do nothing
"""
EXPIRED: Final = "delete from fallow_suppressed where expires_at < now()"

CONTROL_FETCH: Final = "select record_id, body from fallow_rows where memory_type = %s and record_id = any(%s)"
CONTROL_FIND: Final = """
select record_id, body from fallow_rows where memory_type = %s and left(record_id, %s) = %s
order by record_id collate "C"
"""
CONTROL_LOCK: Final = "select body from fallow_rows where memory_type = %s and record_id = %s for update"
CONTROL_SET: Final = "update fallow_rows set body = %s where memory_type = %s and record_id = %s"
CONTROL_INSERT: Final = """
insert into fallow_rows select %s, g.record_id, g.body from unnest(%s::text[], %s::text[]) as g (record_id, body)
on conflict do nothing returning record_id
"""
