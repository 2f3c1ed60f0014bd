"""How a collective is carried out for any data: reductions, running totals, joined values, gradients."""
