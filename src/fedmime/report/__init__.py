"""Reports people look at: read recorded runs, draw curves, tables and heat maps, write one HTML file. Runs nothing."""
