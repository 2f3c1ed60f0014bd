"""How data is sent in one group: nested data as packets, packets as calls of torch, and asynchronous calls."""
