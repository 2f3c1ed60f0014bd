"""The ways by which a node is started, and what its daemon then is to the notebook."""
