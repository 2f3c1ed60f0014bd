"""The ways by which a node is started, and what its fork server then is to the notebook."""
