"""The ports of a run: models, stores, embedders, indexes, memories, a clock, and the rules of retries."""
