"""Charts of what ranks have measured: bars, grids, schedules, curves, and the shards of tensors.

They look like the pictures of collectives: a rank has the same colour and a digit, and a description in words.
"""
