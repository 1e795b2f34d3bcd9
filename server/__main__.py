"""`python -m server`: configured by DISTRUST_… variables, until SIGTERM."""

from common.threads import one_thread
from common.web.serve import main
from server.app import build
from server.settings import ServerSettings

if __name__ == "__main__":
    with one_thread():
        raise SystemExit(main(ServerSettings, build))
