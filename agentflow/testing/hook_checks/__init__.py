"""The parts of `agentflow.testing.check_hook`: scenes, probes, neighbours, the watchdog, and the report."""
