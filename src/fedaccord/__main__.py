"""`python -m fedaccord` is the command line."""

from fedaccord.cli import main

main()
