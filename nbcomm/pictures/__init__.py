"""Pictures of collectives: what each rank had before, what it has after, and what went where.

It knows neither torch nor the ranks: values come in, a plan comes out (`plan`), and a plan becomes a picture (`svg`).
"""
