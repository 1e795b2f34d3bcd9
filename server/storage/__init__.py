"""What the server remembers: its database, the private keys of open runs in files, and what is deleted when."""
