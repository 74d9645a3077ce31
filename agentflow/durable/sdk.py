"""The one module that loads DBOS, with an error if it is missing."""

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
    from dbos import _dbos as dbos_module  # pyright: ignore[reportPrivateUsage] - see `worker.py`
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
    "dbos_module",
]
