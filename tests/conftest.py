"""What all tests share."""

from hypothesis import settings

# No example promises how long it takes: benchmarks measure time, tests do not.
settings.register_profile("distrust", deadline=None)
settings.load_profile("distrust")
