"""One request at a time, from its sending to its end: cells, interrupts, input, the hang watch, values."""
