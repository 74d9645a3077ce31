"""Calls that survive their process, run by any of several workers: `agentflow.durable.agent.DurableAgent`."""
