"""Records to tables, figures and one HTML page. Nothing here imports torch: arrays are NumPy's, numbers come from the records."""
