"""`python -m server`: configured by DISTRUST_… variables, until SIGTERM."""

from common.web.serve import main
from server.app import build
from server.settings import ServerSettings

if __name__ == "__main__":
    raise SystemExit(main(ServerSettings, build))
