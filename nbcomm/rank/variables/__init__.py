"""What variables are, and where they differ between ranks, as plain data."""
