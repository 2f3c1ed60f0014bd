"""The ranks as the notebook sees them: the link, who lives, how they start, are replaced, and form groups."""
