"""Turns: tools with bound arguments that run without a model, directly or from an agent's queue."""
