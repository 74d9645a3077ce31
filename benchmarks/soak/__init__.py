"""Sessions with everything that may go wrong, for hours: `python -m benchmarks.soak --minutes 60`."""
