"""`python -m distrust.shuffler`: configured by DISTRUST_… variables, until SIGTERM."""

from distrust.common.web.serve import run_service
from distrust.shuffler.app import build
from distrust.shuffler.settings import ShufflerSettings

if __name__ == "__main__":
    raise SystemExit(run_service(ShufflerSettings, build))
