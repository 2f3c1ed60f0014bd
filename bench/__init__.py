"""The table of speeds: ``python -m bench``. Ratios within one run; a quiet machine gives the truest."""
