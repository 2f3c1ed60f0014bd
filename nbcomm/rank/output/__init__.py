"""Everything that a cell shows, captured in order: text, descriptors, displays, widgets, progress bars."""
