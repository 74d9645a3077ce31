"""Plugins: ready-made hooks, one module each. Import the one you want: `from agentflow.plugins.logging import ...`."""
