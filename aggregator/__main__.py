"""`python -m distrust.aggregator`: configured by DISTRUST_… variables, until SIGTERM."""

from distrust.aggregator.app import build
from distrust.aggregator.settings import AggregatorSettings
from distrust.common.web.serve import run_service

if __name__ == "__main__":
    raise SystemExit(run_service(AggregatorSettings, build))
