"""The parts of `agentflow.testing.check_hook`: scenes, probes, neighbours, observations, the watchdog, and the report."""
