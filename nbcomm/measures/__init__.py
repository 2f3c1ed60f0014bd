"""What ranks measure and describe for a chart: times of collectives, memory by kind, samples, shards.

The notebook calls these functions by their names, so that it needs not import them, nor torch. What they get and return
is plain data.
"""
