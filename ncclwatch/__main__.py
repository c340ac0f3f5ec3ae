"""Lets `python -m ncclwatch` be the command `ncclwatch`."""

from ncclwatch.cli.main import main

if __name__ == "__main__":
    main()
