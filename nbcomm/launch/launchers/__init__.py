"""The launchers, which start a node, and what its daemon then is to the notebook."""
