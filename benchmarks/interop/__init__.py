"""Others' clients and agents on our wire servers."""
