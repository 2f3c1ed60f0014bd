"""A Jupyter kernel in which every cell runs on the ranks; `spec` installs it, `app` implements it."""
