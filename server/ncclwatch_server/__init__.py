"""The server of ncclwatch: takes the agents' news, judges every second, and says what is wrong."""
