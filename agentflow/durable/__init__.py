"""Calls that outlive their process, run by any of several workers: `agentflow.durable.agent.DurableAgent`."""
