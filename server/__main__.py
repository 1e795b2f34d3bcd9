"""Starts the server: `python -m distrust.server`, configured by DISTRUST_… variables. SIGTERM ends it."""

from distrust.common.threads import one_thread
from distrust.common.web.serve import main
from distrust.server.app import ServerSettings, server_app

if __name__ == "__main__":
    with one_thread():
        raise SystemExit(main(ServerSettings, server_app))
