"""`python -m examples.demo`, or `make demo`; CORPUS=PATH takes other text than the Python standard library."""

from examples.demo.driver import main

main()
