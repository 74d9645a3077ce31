"""agentflow: typed events through one priority-sorted chain of hooks around an LLM agent's ReAct loop."""
