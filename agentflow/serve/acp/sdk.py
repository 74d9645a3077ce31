"""The only module that imports the official package of ACP, with an error if it is missing."""

from __future__ import annotations

try:
    from acp import PROTOCOL_VERSION, RequestError, helpers, schema
    from acp.agent.connection import AgentSideConnection
    from acp.interfaces import Agent as ProtocolAgent
    from acp.interfaces import Client
except ImportError as error:
    raise ImportError(
        "agentflow.serve.acp needs the package of the protocol: pip install 'agentflow-hooks[acp]'"
    ) from error

__all__ = ["PROTOCOL_VERSION", "AgentSideConnection", "Client", "ProtocolAgent", "RequestError", "helpers", "schema"]
