"""A worker among the workers of a database: it reports that it is alive, and takes over the runs of dead workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentflow._support.daemon import in_daemon
from agentflow._support.logs import logger
from agentflow._support.outage import Outage
from agentflow.durable.client import WORKFLOW
from agentflow.durable.sdk import DBOS, DBOSClient
from agentflow.durable.tables import Tables
from agentflow.durable.workflows import QUEUE


@dataclass(frozen=True, slots=True)
class Membership:
    """The entry of a worker in the database.

    Attributes:
        id: The worker's id.
        lease: Seconds after which it counts as dead if it does not report.
        tables: The tables of the database.
        dbos: The queues of the database.
        outage: Logs that the database is unreachable.
    """

    id: str
    lease: float
    tables: Tables
    dbos: DBOSClient
    outage: Outage

    def beat(self) -> None:
        """Report that the worker is alive."""
        self.tables.beat(self.id, self.lease)

    async def owns(self, workflow_id: str) -> bool:
        """Return whether this worker still owns a call; true if the database does not respond."""
        try:
            found = await in_daemon(
                self.dbos.list_workflows, workflow_ids=[workflow_id], load_input=False, load_output=False
            )
        except Exception as error:  # DBOS, SQLAlchemy and the drivers have their own exceptions
            self.outage.failed(error)
            return True
        return any(status.status == "PENDING" and status.executor_id == self.id for status in found)

    def take_over(self, agents: Iterable[str]) -> None:
        """Put the runs of dead workers back into the queues of these agents."""
        queues = [QUEUE + name for name in agents]
        running = self.dbos.list_workflows(
            status="PENDING", name=WORKFLOW, queue_name=queues, load_input=False, load_output=False
        )
        owners = {run.executor_id for run in running if run.executor_id is not None}
        # Read after the runs: a worker reports before its first run, so no living owner is missing.
        dead = sorted(owners - self.tables.alive() - {self.id})
        if dead:
            logger.warning("worker {} takes over the runs of {}, which stopped reporting", self.id, ", ".join(dead))
            DBOS._recover_pending_workflows(dead)  # pyright: ignore[reportPrivateUsage] - atomic, and keeps queue and partition
