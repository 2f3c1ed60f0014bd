"""``who`` and ``diff``: the questions to the ranks, and how their answers are shown."""
