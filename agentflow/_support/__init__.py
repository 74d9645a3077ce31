"""Base utilities without agent concepts: values, ids, locks, names, text."""
