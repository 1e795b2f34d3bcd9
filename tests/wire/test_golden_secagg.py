"""Tests the golden bytes of secure aggregation and of seals. A change here is a new version of the protocol.

Where a value follows from a formula in a line or two, the test writes the formula beside it (contexts, statements,
shares, the blend). The rest was recorded once from the simulation below, whose only source of chance is SHA-256 of
"golden 0", "golden 1", …: seeds and channel keys of the four clients, then the coefficients of each client's three
polynomials, in the order in which they are drawn. The challenge is 32 bytes 07.
"""

import hashlib
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.aggregator import protocol
from distrust.aggregator.confirmation import Sharing
from distrust.aggregator.recovery import recover
from distrust.client import secagg
from distrust.common.crypto import share
from distrust.common.crypto.context import claim, confirm_statement, masked_statement, unmask_statement
from distrust.common.crypto.graph import keyed_permutation
from distrust.common.crypto.keys import Binding, key_hash, pair_from_seed
from distrust.common.crypto.mask import sum_masks
from distrust.common.crypto.seal import open_record, seal_info
from distrust.common.crypto.share import PRIME, blend, evaluate
from distrust.common.messages.cohort import Cohort, Sealed
from distrust.common.modular import pack
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort

KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("modulus", "dimension", "values"),
    [
        (10, 4, [0, 1, 2, 2]),
        (2**63 - 1, 3, [5809442492122173683, 33547050739757994, 7322775249533427185]),
        (
            3 * 2**61,
            9,
            [
                2339390059953451945,
                4410926500381718182,
                6738278627113548814,
                4148145214276085768,
                3413870527743673298,
                6223411483879120512,
                484403225314090830,
                5650274539954881331,
                4991802005354776489,
            ],
        ),
    ],
)
def test_masks(modulus: int, dimension: int, values: list[int]) -> None:
    assert sum_masks([KEY], modulus, dimension).tolist() == values


@pytest.mark.parametrize(
    ("modulus", "values", "body"),
    [
        (2, [1, 0, 1], "a0"),
        (1000, [1, 2, 999, 0], "00402f9c00"),
        (2**63 - 1, [2**63 - 2, 1], "fffffffffffffffc0000000000000004"),
        (10, list(range(10)) * 2, "01234567890123456789"),
    ],
)
def test_packing(modulus: int, values: list[int], body: str) -> None:
    assert pack(np.array(values, dtype=np.uint64), modulus).hex() == body


def test_shares_of_three_polynomials() -> None:
    first, second, third = [int.from_bytes(bytes(range(16)), "big"), 2**129 + 1, 7], [0, 1, 2**130 - 6], [5, 0, 0]
    assert [triple.hex() for triple in evaluate((first, second, third), 3)] == [
        "02000102030405060708090a0b0c0d0e170000000000000000000000000000000000" + FIVE,
        "00000102030405060708090a0b0c0d0e3203fffffffffffffffffffffffffffffff9" + FIVE,
        "02000102030405060708090a0b0c0d0e5603fffffffffffffffffffffffffffffff5" + FIVE,
    ]


FIVE = "0000000000000000000000000000000005"


def test_permutation() -> None:
    assert keyed_permutation(KEY, 12).tolist() == [0, 8, 1, 4, 5, 9, 3, 10, 7, 2, 11, 6]


def sealed_cohort() -> Cohort:
    public = X25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw()
    base = make_cohort(4, 10, 3)
    return base.model_copy(update={"channel": Sealed(size=3, server_key=public)})


CONTEXT = (
    "00000020" + 32 * "00" + "0000000a" + b"simulation".hex() + "000000080000000000000001" + "00000001" + b"c".hex()
)
"""The bytes behind the label in every context: configuration, run, round, cohort; then the cohort's digest."""


def opening(label: str, cohort: Cohort) -> str:
    return len(label).to_bytes(4, "big").hex() + label.encode().hex() + CONTEXT + "00000020" + cohort.digest().hex()


def test_seal_info_and_a_record_sealed_long_ago() -> None:
    assert seal_info(sealed_cohort()).hex() == opening("distrust seal v1", sealed_cohort())
    record = bytes.fromhex(
        "4ae3c7b1170d73c1b48c05d0d5b4bc095d70bf81ee917f4ba94ba91fec592c17ad8a01b4c8f663ebb1b047860559a3c6"
        "5ffc043a7766e16acdab9ab01ba44ca60eed5f"
    )
    assert open_record(X25519PrivateKey.from_private_bytes(KEY), sealed_cohort(), record) == (bytes(range(16)), b"abc")


def test_a_claim() -> None:
    """Slot, eight bytes, and secret, 32, each behind its length; before them stands what every context begins with."""
    text = bytes.fromhex(opening("distrust claim v1", sealed_cohort()) + "000000080000000000000003" + "00000020")
    assert claim(sealed_cohort(), 3, KEY) == hashlib.sha256(text + KEY).digest()


def test_the_hash_of_keys() -> None:
    """SHA-256 of protocol and purpose, each behind its length, and the 64 bytes."""
    text = b"\0\0\0\x12distrust secagg v2" + b"\0\0\0\x0bpublic keys" + KEY + KEY
    assert key_hash(KEY + KEY) == hashlib.sha256(text).digest()


def test_statements() -> None:
    """SHA-256 of the cohort's context, the stage, and its fields, each behind its length."""
    cohort = make_cohort(4, 10, 3)
    roster = protocol.Roster(cohort, b"\x0f", bytes.fromhex(ROSTER))
    start = bytes.fromhex(opening("distrust statement v2", cohort))

    def field(raw: bytes) -> bytes:
        return len(raw).to_bytes(4, "big") + raw

    first = hashlib.sha256(start + b"".join(map(field, (b"confirm", roster.digest, b"\x0f", KEY)))).digest()
    assert confirm_statement(roster.digest, roster.cohort, b"\x0f", KEY) == first
    second = hashlib.sha256(start + b"".join(map(field, (b"masked", first, b"\x0f")))).digest()
    assert masked_statement(first, cohort, b"\x0f") == second
    third = hashlib.sha256(start + b"".join(map(field, (b"unmask", second, b"\x07")))).digest()
    assert unmask_statement(second, cohort, b"\x07") == third


def test_the_factors_of_a_challenge_and_a_blend() -> None:
    cohort = make_cohort(4, 10, 3)
    start = bytes.fromhex(opening("distrust secagg v2", cohort)) + b"\0\0\0\x09challenge"
    hashes = [
        hashlib.sha512(start + b"\0\0\0\x08" + i.to_bytes(8, "big") + b"\0\0\0\x20" + KEY).digest() for i in (1, 2)
    ]
    factors = Binding(cohort).challenge(KEY)
    assert list(factors) == [int.from_bytes(result, "big") % (2**130 - 6) + 1 for result in hashes]
    assert blend(factors, [(2, 3, 4)]) == ((2 * factors[0] + 3 * factors[1] + 4) % PRIME).to_bytes(17, "big")


def test_derived_keys() -> None:
    names, private = Binding(make_cohort(4, 10, 3)), X25519PrivateKey.from_private_bytes(KEY)
    public = private.public_key().public_bytes_raw()
    assert names.self_mask(bytes(16), 2).hex() == "f5a163b48e78d85c2c3f49c8932bfe8f2096ba2d1823bccd2e3a9a115cd7cde4"
    assert (
        names.pair_mask(private, public, 2, 1).hex()
        == "40f795d16b66afe3f0914dea73ff2e4855ba5b609476c7099f8cf7acbd72e2a1"
    )
    assert (
        names.channel(private, public, 1, 2).hex() == "358ff58d7727a35976c8c4dfb6b8aadd2dd71f87c442ac24b9f81a175c9448b8"
    )
    assert names.commitment(bytes(16), 2).hex() == "59a1c6969c6484e71e0dc5dd629759917e4e4537ec248b40285c0100c940f918"
    assert pair_from_seed(bytes(16)).public_key().public_bytes_raw().hex() == (
        "4781412db830a0377a43890ea89d0ccf47d528e9c880c3b270d8e3531edc2573"
    )


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Return four clients with known seeds, keys and polynomials. Slot 3 is lost before it sends its vector."""
    counter = itertools.count()

    def draw() -> bytes:
        return hashlib.sha256(b"golden %d" % next(counter)).digest()

    monkeypatch.setattr(secagg, "new_seed", lambda: draw()[:16])
    monkeypatch.setattr(secagg, "new_pair", lambda: X25519PrivateKey.from_private_bytes(draw()))
    monkeypatch.setattr(share, "_uniform", lambda count: [int.from_bytes(draw()[:16], "big") for _ in range(count)])
    simulation = enrol(make_cohort(4, 10, 3, dropout=0.25), dropout=0.25)
    simulation.send_keys(range(4))
    simulation.send_shares(range(4))
    simulation.challenge = bytes([7]) * 32
    roster, shared = simulation.roster, simulation.bitmap(range(4))
    statement = confirm_statement(roster.digest, roster.cohort, shared, simulation.challenge)
    simulation.statements["confirm"] = statement
    simulation.send_confirm(range(4))
    simulation.send_masked(range(3), np.arange(12, dtype=np.uint64).reshape(4, 3) % np.uint64(10))
    simulation.send_unmask(range(3))
    return simulation


def test_the_bodies_of_all_stages(simulation: Simulation) -> None:
    assert simulation.roster.keys.hex() == ROSTER
    assert simulation.shares[0].hex() == SHARES
    assert simulation.inboxes[0].hex() == INBOX
    assert tuple(body.hex() for body in simulation.confirmed.values()) == CONFIRMED
    assert tuple(body.hex() for body in simulation.masked.values()) == MASKED
    assert tuple(body.hex() for body in simulation.answers.values()) == ANSWERS
    assert simulation.statements["unmask"].hex() == STATEMENT
    assert simulation.bitmap(simulation.masked).hex() == "07"
    assert simulation.recover().tolist() == [9, 2, 5]


def test_recorded_bodies_still_add_up() -> None:
    """The other direction: bytes of these clients, as recorded, are read by today's aggregator."""
    cohort = make_cohort(4, 10, 3, dropout=0.25)
    roster = protocol.Roster(cohort, b"\x0f", bytes.fromhex(ROSTER))
    commitments = {i: bytes.fromhex(COMMITMENTS)[32 * i : 32 * i + 32] for i in range(4)}
    confirmed = {i: bytes.fromhex(body) for i, body in enumerate(CONFIRMED)}
    masked = {i: bytes.fromhex(body) for i, body in enumerate(MASKED)}
    answers = {i: bytes.fromhex(body) for i, body in enumerate(ANSWERS)}
    verdict = protocol.close_confirm(Sharing(roster, range(4)), confirmed)
    result = recover(verdict, masked, commitments, answers)
    assert (result.total.tolist(), result.liars, result.disputes) == ([9, 2, 5], (), 0)


ROSTER = (
    "294753034ef50421a85e706e12174d47bcf8e939596c390c2ae136249337352c2ade8be4440ee248379946f89ef4c125"
    "21e81d1b7842818b174036e78572c6057bb7323bc43a422b93491f38b3d60c47387cbb103444ae04f3c8e1edfe707923"
    "f74a9e952aebac783f16dee2272e5dc33a8c10ec15fa2449a4ee9208a216982d24442c651157b9b5ea30438dba4084b9"
    "e27ff4283f2c3154a0ffe1cea7badb0188124da61df5ab80d976b4a2de458152374d50e6a1e3d1b3d25b3afaf279331b"
    "30097e4403cca8517dbb340bc438e031eb711fa8d7e6add7038758d702ca1f7831b14339c620923a24d8115017793679"
    "92b9e604eafc97ba2dbd32ad8e473439"
)
SHARES = (
    "6cf29d750241039188c0a60081868ceff0d6f21f0e09d806cce1bda15a0e4ea3993625dd2416b983a9864b36170e2ddd"
    "a051c7a2f99b48bdfb84695b7dcb82f22b0a5c4f584f18feab566c723aef3747bb5df3ba0f4a4dbb5ab594a787797023"
    "563cd9c534e291db09387aaca3ff75537bcd9e6db1cdec8392bd3513541fd96c4b85edaef6f00f06c7823886b526a228"
    "4f443b09f8a516c43596c05573f918bf8c17b88f0937bf7aaccbe0567bbbdd1ab45adfaefe55a7e2ed63214b78aabb75"
    "8df2df442641ec2a0c40b051775118aedb289291862b45a444fb5a8619f2224bc040af234c20409e8a"
)
INBOX = (
    "da494f9668240ef684472250e33cd9e7b25d42232e70cb0b0e2b3aec96537658df04128b655b61e8d57a83edc5c19604"
    "d39edf62ef21ef8248ae289f24a65cf4e18a9e35f2825f8d6d9df9b2cd62552b22bbd2eb76681e8297d5cad60c610869"
    "36ff3005948b9108e7e2aca54c91ccebcdc8e91a94979b24ff4bf6851fd1a5805b5b2152169ec26f2b7f40e6875a953c"
    "b9d3fb8ad1ee3faaec7da51b4211e7d2a9118be9dfefcaa5fcb15019f9def405dea55b35a6d300ee7b814c79f0463b3d"
    "35edb804239f95f059"
)
COMMITMENTS = (
    "6cf29d750241039188c0a60081868ceff0d6f21f0e09d806cce1bda15a0e4ea31968491291f5b8b18e2fb794cbb881cd"
    "29e8a9407cbb36cfcd9d4730e42b1c9a1035351c64a0625e3a6034376cb3d2472e694b68f3391d6d7b4bd02d53945769"
    "223ff49af263618aa76632fabcb219dafb461dd04d1097f13c6eb2ebdfc98386"
)
CONFIRMED = (
    (
        "004d6421a0407babadce01b0417ed9151c03804bf1adab1817de9eafb64fbb5bdea2006d41bf07b31a21e88ddf71214f"
        "316113004c3f04509e8cceae72f03e7fc0ea739c022ec7d0bcf222968baa9e7799633d522a"
    ),
    (
        "03b97b19a3dc78b4dba122bacebbbda5de00b3c6a563d6a16d0cecbcb6529373bb3003cdb0134deb93c38c6cb166913a"
        "34f3be01a93ff3e84de13fbf1a60ad767c8a8c3c00a4b86d8455bec1882eb12e9d32711840"
    ),
    (
        "02ef3e14b8ef385d9dcb7fcf89054a5af7015d00ef97af547110a7706ef6bba018a0034dfc04fb96abdb6b0b611ce0f5"
        "90d265012108646b89bb8ef57a9c2773e2a51c43031aa90a4bb95aec84b2c3e5a101a4de51"
    ),
    (
        "03b8d733f58e866b8f268bc09594098c140275f09cc7639c2afc8412b703cf33c61102ce47f6a941c3f349aa10d330b0"
        "ecb10c01d4cf09cf605cfc026758ddc67618d773030640e37ffd35b0cfc1d11c6d382aa4dc"
    ),
)
MASKED = (
    "8260",
    "5680",
    "9170",
)
ANSWERS = (
    "014df596bea5f0afc8ebcd15ebca213e0f00eaa7cc865a6fa3c52aaddd042fbbc37d004d37b92fa5883612a20407216bef19f0",
    "014489c7904baac6bc916b984a2acaf67a01b2d86e2635cf6d99bdcdd234669f70c1008a4e08bdae1e951685214e73bd5d17f3",
    "01e2b51e94a43c871eb4990a5eaab5c75e01a72fc7aee4cf1c5f7bb8b97d25a8139a00c764584bb6b4f41a683e95c60ecb15f6",
)
STATEMENT = "c14b5d053db958da0d02a12682818761ef77b615608dff1b504ab1e9dd949ce3"
