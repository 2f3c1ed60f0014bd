"""Starting of processes from the notebook: the fork server, ipyparallel's launchers, placement, discovery of worlds."""
