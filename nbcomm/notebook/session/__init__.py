"""`Session`, the public Python API, and which sessions this process has."""
