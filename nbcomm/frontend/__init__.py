"""Shared parts of the displays in a page: widgets without a view, messages to a page that may be gone, plain tables."""
