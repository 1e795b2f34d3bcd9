"""The `distrust` commands; `lab.__main__` says which module has which."""
