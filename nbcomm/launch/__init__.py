"""Starts processes from the notebook: the fork server, ipyparallel's launchers, where ranks sit, worlds that live."""
