"""The privacy calculator of the command line and of the server's page."""
