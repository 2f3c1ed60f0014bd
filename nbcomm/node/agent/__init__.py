"""The node's agent: what passes between its ranks and the notebook, and the ranks' store."""
