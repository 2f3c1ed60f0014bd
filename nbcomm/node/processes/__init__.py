"""The processes of a node: how they start, live and end."""
