"""The processes of one node: the fork server, what its children become, and how they end."""
