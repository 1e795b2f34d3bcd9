"""Carries clients' calls to the services: the interface, and its implementation over HTTP."""
