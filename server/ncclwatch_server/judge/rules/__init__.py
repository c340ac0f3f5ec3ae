"""Names why a job hangs: each module recognises a cause, and holds its sentences."""
