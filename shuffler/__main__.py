"""Starts the shuffler for `distrust serve shuffler`: `python -P -m distrust.shuffler`. SIGTERM ends it.

DISTRUST_… variables configure it. `-P` keeps the working folder off the path: no file in it runs in place of ours.
"""

from distrust.common.protocol.web.serve import run_service
from distrust.shuffler.app import ShufflerSettings, shuffler_app

if __name__ == "__main__":
    raise SystemExit(run_service(ShufflerSettings, shuffler_app))
