"""Starts the shuffler: `python -m distrust.shuffler`, configured by DISTRUST_… variables. SIGTERM ends it."""

from distrust.common.web.serve import main
from distrust.shuffler.app import ShufflerSettings, shuffler_app

if __name__ == "__main__":
    raise SystemExit(main(ShufflerSettings, shuffler_app))
