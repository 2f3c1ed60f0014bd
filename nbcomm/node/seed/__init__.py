"""The seed: a process that has imported torch, and forks the fork servers of this user's next worlds."""
