"""Runs over services: connections, fleets in processes, what each party saw, runs played again from their rounds."""
