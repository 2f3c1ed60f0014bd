"""What lives once on each node: the fork server, what its children become, and how they end."""
