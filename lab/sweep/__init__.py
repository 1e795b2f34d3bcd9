"""Sweeps: policies × mechanisms × worlds × seeds as data, played on all cores, resumable after a kill."""
