"""The report of a compile: as data, on the terminal, and as one HTML page."""
