"""Saving: one codec for all that outlives a process: facts, sessions, verdicts, turns, queues, agents."""
