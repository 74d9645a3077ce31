"""Mutation testing: change the package a little at a random place, and see whether a test fails."""
