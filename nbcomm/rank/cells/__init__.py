"""User code on the main thread: cells, scripts, the debugger, input, the pager, completion."""
