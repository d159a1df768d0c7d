"""`python -m tokenfeed`."""

from tokenfeed.cli import main

main()
