"""How clients reach the services: the interface, and its implementation over HTTP."""
