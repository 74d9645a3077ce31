"""The library's cost over hand-written loops: `python -m benchmarks`."""
