"""One request at a time, from its sending to its end: cells, interrupts, questions, the hang watch, values."""
