"""`python -m aggregator`: configured by DISTRUST_… variables, until SIGTERM."""

from aggregator.app import build
from aggregator.settings import AggregatorSettings
from common.web.serve import main

if __name__ == "__main__":
    raise SystemExit(main(AggregatorSettings, build))
