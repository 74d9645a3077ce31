"""The parts of `check_store`."""
