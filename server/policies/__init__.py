"""Policies, one a file: decide what to ask next. A policy sees estimates and error laws, never a mechanism."""
