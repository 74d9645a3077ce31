"""The command line: `agentflow demo`, `run`, `chat`, `hooks`. See `docs/cli.md`."""
