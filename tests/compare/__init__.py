"""What other tools say of the programs of the zoo, beside ncclwatch: `python -m tests.compare`."""
