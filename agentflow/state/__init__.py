"""Stores that outlive the process: `agentflow.state.sql.SqlStore`."""

from importlib.util import find_spec

if find_spec("sqlalchemy") is None:
    raise ModuleNotFoundError('SqlStore needs SQLAlchemy: pip install "agentflow-hooks[sql]"', name="sqlalchemy")
