"""Widgets that live on ranks: the notebook's ends of their comms, and one row for each rank."""
