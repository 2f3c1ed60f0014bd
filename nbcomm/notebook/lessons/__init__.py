"""Checks of what learners write, predictions, hints, and what a learner has done so far."""
