"""Starting of processes from the notebook: daemon, ranks, ipyparallel's controller, placement, finding worlds."""
