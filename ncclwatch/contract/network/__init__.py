"""How two processes trust each other on a network: TLS, tokens, the uid of a peer."""
