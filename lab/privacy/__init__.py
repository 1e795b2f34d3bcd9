"""The privacy calculator."""
