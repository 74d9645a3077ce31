"""Others' clients and agents on our wire servers, and our adapters on others' servers."""
