"""Load on servers of agents: `python -m benchmarks.serve`. See docs/performance.md."""
