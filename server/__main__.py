"""`python -m distrust.server`: configured by DISTRUST_… variables, until SIGTERM."""

from distrust.common.machine import one_thread
from distrust.common.web.serve import run_service
from distrust.server.app import build
from distrust.server.settings import ServerSettings

if __name__ == "__main__":
    with one_thread():
        raise SystemExit(run_service(ServerSettings, build))
