"""What the notebooks stand on: steps, widgets, checks, assignments and their grading, pages, timings."""
