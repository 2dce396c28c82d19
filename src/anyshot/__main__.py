"""`python -m anyshot` and `torchrun -m anyshot`: the command line."""

from anyshot.cli.main import main

main()
