"""The loop of a call: the machine, the run that owns its task, rounds, tool calls, turns; in `output/` typed answers."""
