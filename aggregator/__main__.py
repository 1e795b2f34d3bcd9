"""Starts the aggregator: `python -m distrust.aggregator`, configured by DISTRUST_… variables. SIGTERM ends it."""

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.common.web.serve import main

if __name__ == "__main__":
    raise SystemExit(main(AggregatorSettings, aggregator_app))
