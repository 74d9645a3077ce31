"""One module per side of the race, each run by an interpreter that has its package and not the others'."""
