"""The tables of `SqlStore` in the newest schema, which `migrations` creates."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text

_tables = MetaData()

SESSIONS = Table(
    "agentflow_sessions",
    _tables,
    Column("id", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),  # the number of the session's facts
    Column("status", Text, nullable=False),
    Column("updated", Float, nullable=False),  # seconds since the epoch
)

FACTS = Table(
    "agentflow_facts",
    _tables,
    Column("session_id", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True),  # the first one is 1
    Column("run_id", Text),
    Column("natural_key", Text),  # unique within a session
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),  # agentflow.vocabulary.saving.codec
    Column("time", Float, nullable=False),
)

LEASES = Table(
    "agentflow_leases",
    _tables,
    Column("session_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("expires", Float, nullable=False),  # the end of the lease, by the database's clock; 0 if it was released
    Column("epoch", BigInteger, nullable=False),  # how many times another owner has taken it
)

LOGS = Table(
    "agentflow_logs",
    _tables,
    Column("run_id", Text, primary_key=True),
    Column("began", Float, nullable=False),
    Column("updated", Float, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes
    Column("parts", BigInteger, nullable=False),  # the number of its parts
)

LOG_PARTS = Table(
    "agentflow_log_parts",
    _tables,
    Column("run_id", Text, primary_key=True),
    Column("place", BigInteger, primary_key=True),  # the first one is 1
    Column("writer", Text, nullable=False),
    Column("number", BigInteger, nullable=False),  # unique among the parts of one writer
    Column("lines", Text, nullable=False),
)
