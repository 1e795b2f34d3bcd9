"""Starts the server: `python -m distrust.server`, configured by DISTRUST_… variables. SIGTERM ends it."""

from distrust.common.privacy.searches import one_thread
from distrust.common.web.serve import run_service
from distrust.server.app import ServerSettings, server_app

if __name__ == "__main__":
    with one_thread():
        raise SystemExit(run_service(ServerSettings, server_app))
