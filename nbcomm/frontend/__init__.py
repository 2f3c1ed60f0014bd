"""What all that is drawn in a page shares: widgets without a view, messages that nobody may hear, plain tables."""
