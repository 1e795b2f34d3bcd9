"""Who may open cohorts and collect batches: whoever holds the operator's token, when one is configured."""

import hmac

from fastapi import Depends, Request

from common.errors import Unauthorized


def require_operator(request: Request) -> None:
    """Raise Unauthorized unless the request carries the operator's token. Without a token only loopback is served."""
    token: str | None = request.app.state.operator_token
    if token is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Unauthorized("this call needs the operator's token: Authorization: Bearer …")


OperatorOnly = Depends(require_operator)
"""For a route's `dependencies=[…]`; add `Unauthorized` to its `problems(…)`."""
