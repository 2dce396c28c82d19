"""From tables to grids, summaries and figures. Nothing here imports torch."""
