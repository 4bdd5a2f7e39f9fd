"""Reports: the history of a fit, and the tables, plots and pages that are made from it."""
