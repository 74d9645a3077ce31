"""The codec for stored data: facts, sessions, verdicts, turns, queues, agents."""
