"""The ranks as the notebook sees them: the link, which of them live, how they start, are replaced, and form groups."""
