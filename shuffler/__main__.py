"""Starts the shuffler: `python -m distrust.shuffler`, configured by DISTRUST_… variables. SIGTERM ends it."""

from distrust.common.web.serve import run_service
from distrust.shuffler.app import ShufflerSettings, shuffler_app

if __name__ == "__main__":
    raise SystemExit(run_service(ShufflerSettings, shuffler_app))
