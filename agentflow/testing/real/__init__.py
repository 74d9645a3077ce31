"""A real model for tests: llama.cpp's server with a model of 270 million parameters, in a separate process."""

from agentflow.testing.real.server import LlamaServer

__all__ = ["LlamaServer"]
