"""The only module that imports DBOS, with an error if it is missing."""

from __future__ import annotations

try:
    from dbos import (
        DBOS,
        DBOSClient,
        DBOSConfig,
        DBOSPortableJSONSerializer,
        EnqueueOptions,
        WorkflowSerializationFormat,
        WorkflowStatus,
    )
    from dbos import _dbos as dbos_module  # pyright: ignore[reportPrivateUsage] - see `stop_retrying`
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('Durable runs need DBOS: pip install "agentflow-hooks[dbos]"', name=error.name) from error

__all__ = [
    "DBOS",
    "DBOSClient",
    "DBOSConfig",
    "DBOSPortableJSONSerializer",
    "EnqueueOptions",
    "WorkflowSerializationFormat",
    "WorkflowStatus",
    "stop_retrying",
]


def stop_retrying() -> None:
    """Prevent DBOS from retrying indefinitely if the database does not respond, with pauses of up to a minute."""
    if (instance := getattr(dbos_module, "_dbos_global_instance", None)) is not None:
        instance._sys_db._retry_connection_errors = False
