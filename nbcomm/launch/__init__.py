"""Starting of processes from the notebook: fork server, ranks, ipyparallel's controller, placement, finding worlds."""
