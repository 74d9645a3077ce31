"""What the library costs over hand-written loops: `python -m benchmarks`."""
