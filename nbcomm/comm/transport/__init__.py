"""How data crosses one group: nested data to packets, packets to calls of torch, and work beside the cell."""
