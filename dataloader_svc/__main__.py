"""`python -m dataloader_svc`: the command, where no script is on the PATH."""

from dataloader_svc.cli.main import main

main()
