"""The names that a cell has without an import: on a rank (`rank.cells.namespace`) and in a saved script (`scripts`)."""

PROPERTIES = ("rank", "global_rank", "world_size", "local_rank", "node_rank", "is_global_zero", "device")
"""The attributes of the Communicator that a cell sees by their bare names."""

METHODS = (
    "barrier",
    "broadcast",
    "scatter",
    "gather",
    "all_gather",
    "reduce",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "send",
    "recv",
    "sendrecv",
    "isend",
    "irecv",
    "scan",
    "any_rank",
    "all_ranks",
    "new_group",
    "split_group",
    "group_rank",
    "rank_print",
    "rank_first",
    "rank_zero_first",
    "one_rank_only",
    "no_backward_sync",
    "to_device",
    "split",
    "pad_across_ranks",
    "gather_for_metrics",
)
"""The methods of the Communicator that a cell sees by their bare names."""
