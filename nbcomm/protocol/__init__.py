"""What travels on the link between the notebook and a rank: messages, their encoding, and pickled values."""
