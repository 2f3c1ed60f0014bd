"""The seed: a process that has imported torch, and forks the daemons of this user's next worlds."""
