"""`Session`, the public Python API, and the sessions of this process."""
