"""The labs' import path of the operation counts, which live in `analysis/cost`."""
