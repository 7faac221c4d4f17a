"""Run `python -m papers` in a clone of the repository."""

from papers.harness.command import main

main()
