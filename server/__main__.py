"""Starts the server for `distrust serve server`: `python -P -m distrust.server`. SIGTERM ends it.

DISTRUST_… variables configure it. `-P` keeps the working folder off the path: no file in it runs in place of ours.
"""

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.protocol.web.serve import run_service
from distrust.server.app import server_app
from distrust.server.settings import ServerSettings

if __name__ == "__main__":
    with one_thread():
        raise SystemExit(run_service(ServerSettings, server_app))
