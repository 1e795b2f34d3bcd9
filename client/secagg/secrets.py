"""What one client must forget: its keys, its seeds, and the shares that neighbours trusted it with."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.crypto.agree import new_pair, new_seed, pair_from_seed
from distrust.common.crypto.graph import Roster
from distrust.common.crypto.share import Polynomial
from distrust.common.errors import WrongStage


class Secrets:
    """Fresh from the operating system for one slot of one cohort; made before either is known.

    public        mask key ‖ channel key, 64 bytes: what stage `keys` sends, and whose hash goes to the server.
    polynomials   of the self seed, the mask seed and the blinding, between the stages `shares` and `confirm`.
    channel_keys  by neighbour, between the stages `shares` and `confirm`: 32 bytes, a cipher would take kilobytes.
    held          by neighbour that shared, from stage `confirm` on: shares of both seeds, 34 bytes, or none if the box
                  did not open.
    members       the members of the stage answered last, as the bits of an integer.
    statement     of the stage answered last.
    """

    __slots__ = (
        "channel_keys",
        "channel_pair",
        "held",
        "mask_pair",
        "mask_seed",
        "members",
        "polynomials",
        "public",
        "roster",
        "self_seed",
        "statement",
    )

    def __init__(self) -> None:
        self.mask_seed, self.self_seed = new_seed(), new_seed()
        self.mask_pair: X25519PrivateKey = pair_from_seed(self.mask_seed)
        self.channel_pair: X25519PrivateKey = new_pair()
        self.public = self.mask_pair.public_key().public_bytes_raw() + self.channel_pair.public_key().public_bytes_raw()
        self.roster: Roster | None = None
        self.polynomials: tuple[Polynomial, Polynomial, Polynomial] | None = None
        self.channel_keys: dict[int, bytes] = {}
        self.held: dict[int, bytes | None] = {}
        self.members = 0
        self.statement = b""

    def __repr__(self) -> str:
        return "Secrets(…)"

    @property
    def agreed(self) -> Roster:
        """The roster of stage `shares`."""
        if self.roster is None:
            raise WrongStage("no roster has been agreed on yet")
        return self.roster
