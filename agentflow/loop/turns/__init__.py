"""Turns: tools with bound arguments that no model asked for, run by hand or by an agent's queue."""
