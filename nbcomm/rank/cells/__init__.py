"""Runs a user's code on the main thread: cells, scripts, the debugger, questions, the pager, completion."""
