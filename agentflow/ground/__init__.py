"""The ground: what everything stands on and nothing of the library's subject is in: values, ids, locks, names, texts."""
