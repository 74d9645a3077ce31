"""Calls that survive their process, run by any of several workers: `agentflow.durable.agent.DurableAgent`."""

from importlib.util import find_spec

if find_spec("dbos") is None:
    raise ModuleNotFoundError('Durable runs need DBOS: pip install "agentflow-hooks[dbos]"', name="dbos")
