"""agentflow beside other frameworks, at the same work: `python -m benchmarks.peers`. See docs/beside-others.md."""
