"""The ranks as the notebook sees them: the link, which of them live, how they start, are replaced, and form groups."""

GROUPS = "the process groups"
"""What a heal renews where all processes are alive."""
