"""The command line, `agentflow`: see `docs/cli.md`."""
