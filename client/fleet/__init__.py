"""A process of many clients: sessions with cohorts, departures, statistics."""
