"""The operators of Flux as plain functions over iterators, grouped by topic; `flux.py` defines their names and types.

Each is an async generator that opens its source itself and closes it in `finally`, so that abandoning, closing or
cancelling the outermost one cleans up all the way to the source.
"""
