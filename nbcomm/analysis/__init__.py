"""What ranks report, judged: verdicts, matched collectives, ladders, timelines, traces. Pure functions of data."""
