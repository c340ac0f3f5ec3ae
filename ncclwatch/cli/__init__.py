"""The command `ncclwatch`. It talks to a server over HTTP and imports neither server, agent nor rank."""
