"""`python -m anyshot` and `torchrun -m anyshot`: the command line."""

from anyshot.cli import main

main()
