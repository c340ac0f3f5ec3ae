"""Says who may do what, and notes who did: tokens, scopes, guesses, crowds, the audit log."""
