"""`python -m envace_lite.cli`, where no script is installed."""

from envace_lite.cli import main

main()
