"""What the project's own tables and figures are made with: studies, records, plots, timings."""
