"""Databases of the services: files for their owner, revisions of a schema, faults that a later try mends."""
