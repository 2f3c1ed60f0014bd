"""Pictures of collectives: what each rank had before, what it has after, and what moved where.

This package uses neither torch nor ranks: `plan` makes a plan of values, and `svg` a picture of a plan.
"""
