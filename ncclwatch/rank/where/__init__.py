"""Says where a rank stands in its program: call sites, modules, stacks."""
