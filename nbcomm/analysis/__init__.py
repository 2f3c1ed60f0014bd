"""Analysis of what ranks report: verdicts, matched collectives, ladders, timelines, traces. Pure functions of data."""
