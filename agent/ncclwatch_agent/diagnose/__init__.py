"""The command `ncclwatch diagnose`: says what stacks tell of jobs that never attached."""
