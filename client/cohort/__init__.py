"""The clients of one cohort: rewards made private, messages of each kind of channel, and their upload."""
