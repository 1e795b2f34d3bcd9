"""Starts the aggregator: `python -m distrust.aggregator`, configured by DISTRUST_… variables. SIGTERM ends it."""

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.common.web.serve import run_service

if __name__ == "__main__":
    raise SystemExit(run_service(AggregatorSettings, aggregator_app))
