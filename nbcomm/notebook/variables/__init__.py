"""``who`` and ``diff``: what ranks are asked, and how their answers read."""
