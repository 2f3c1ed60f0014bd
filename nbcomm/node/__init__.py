"""The processes of one node: the daemon, what its children become, and how they end."""
