"""What one client must forget: its keys, its seeds, and the shares that neighbours trusted it with."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from common.crypto.agree import new_pair, new_seed
from common.crypto.binding import Binding
from common.crypto.graph import Roster
from common.errors import WrongStage


class Secrets:
    """Fresh from the operating system for one slot of one cohort.

    channel_keys  by neighbour, between the stages `shares` and `masked`: 32 bytes, a cipher would take kilobytes.
    held          by neighbour that shared, from stage `masked` on: 34 bytes.
    shared        the members that shared, as the bits of an integer.
    """

    __slots__ = (
        "channel_keys",
        "channel_pair",
        "held",
        "mask_pair",
        "mask_seed",
        "public",
        "roster",
        "self_seed",
        "shared",
    )

    def __init__(self, binding: Binding) -> None:
        self.mask_seed, self.self_seed = new_seed(), new_seed()
        self.mask_pair: X25519PrivateKey = binding.mask_pair(self.mask_seed)
        self.channel_pair: X25519PrivateKey = new_pair()
        self.public = self.mask_pair.public_key().public_bytes_raw() + self.channel_pair.public_key().public_bytes_raw()
        self.roster: Roster | None = None
        self.channel_keys: dict[int, bytes] = {}
        self.held: dict[int, bytes] = {}
        self.shared = 0

    def __repr__(self) -> str:
        return "Secrets(…)"

    @property
    def agreed(self) -> Roster:
        """The roster of stage `shares`."""
        if self.roster is None:
            raise WrongStage("no roster has been agreed on yet")
        return self.roster
