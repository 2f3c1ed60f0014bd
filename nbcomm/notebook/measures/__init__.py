"""What a user asks the ranks to measure, and the charts of it."""
