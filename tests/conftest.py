"""What all tests share."""

import signal

from hypothesis import settings

# No example promises how long it takes: benchmarks measure time, tests do not.
settings.register_profile("distrust", deadline=None)
settings.load_profile("distrust")

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that press ctrl-c would wait.
signal.signal(signal.SIGINT, signal.default_int_handler)
