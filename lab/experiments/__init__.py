"""Experiments as data: one TOML file each, read by lab.sweep."""
