"""Takes in what agents say: the WebSocket, the session of one agent, and bounds on both."""
