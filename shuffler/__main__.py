"""`python -m shuffler`: configured by DISTRUST_… variables, until SIGTERM."""

from common.web.serve import main
from shuffler.app import build
from shuffler.settings import ShufflerSettings

if __name__ == "__main__":
    raise SystemExit(main(ShufflerSettings, build))
