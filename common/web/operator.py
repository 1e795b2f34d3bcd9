"""Who may open cohorts, collect batches, read transcripts: whoever holds the token for it, when one is configured."""

import hmac

from fastapi import Depends, Request

from distrust.common.errors import Unauthorized


async def require_operator(request: Request) -> None:
    """Raise Unauthorized unless the request carries the operator's token. Without a token only loopback is served."""
    _require(request, request.app.state.operator_token, "operator's")


async def require_inspector(request: Request) -> None:
    """Raise Unauthorized unless the request carries the token that reads an S's transcripts."""
    _require(request, request.app.state.inspector_token, "inspector's")


def _require(request: Request, token: str | None, whose: str) -> None:
    if token is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Unauthorized(f"this call needs the {whose} token: Authorization: Bearer …")


InspectorOnly = Depends(require_inspector)
"""For the routes that show who sent what."""

OperatorOnly = Depends(require_operator)
"""For a route's `dependencies=[…]`; add `Unauthorized` to its `problems(…)`."""
