"""Stores that outlive the process: `agentflow.state.sql.SqlStore`."""
