"""A real server with the real judge, in a process of its own. python -m tests.integration.pages_server PORT [STORE]"""

import logging
import sys

from ncclwatch_server.app import create_app
from ncclwatch_server.serving.uvicorn_server import Serving, listen, serve
from ncclwatch_server.settings import Settings, read_grants


def main() -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO)
    listener = listen("127.0.0.1", int(sys.argv[1]))
    app = create_app(Settings(store=sys.argv[2] if len(sys.argv) > 2 else "", grants=read_grants()))
    serve(app, Serving(host="127.0.0.1", port=0, ephemeral=False, ready_fd=1, parent=None), listener)


if __name__ == "__main__":
    main()
