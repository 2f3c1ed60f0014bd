"""What a cell has on the page: areas, screens, displays that change, and the items that they consist of."""
