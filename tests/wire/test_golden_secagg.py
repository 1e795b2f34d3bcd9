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
from distrust.aggregator.recovery import sum_masked, unmask_total
from distrust.client.cohort import secagg
from distrust.common.modular import pack
from distrust.common.protocol.channels.sealed import Sealed
from distrust.common.protocol.crypto import share
from distrust.common.protocol.crypto.context import claim, confirm_statement, masked_statement, unmask_statement
from distrust.common.protocol.crypto.graph import Roster, keyed_permutation
from distrust.common.protocol.crypto.keys import Binding, key_hash, pair_from_seed
from distrust.common.protocol.crypto.mask import sum_masks
from distrust.common.protocol.crypto.seal import open_record, seal_info
from distrust.common.protocol.crypto.share import PRIME, blend, evaluate
from distrust.common.protocol.messages.cohort import Cohort
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
    assert sum_masks([bytearray(KEY)], modulus, dimension).tolist() == values


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
"""The bytes behind the label in every context: R, run, round, cohort; then the cohort's digest."""


def opening(label: str, cohort: Cohort) -> str:
    return len(label).to_bytes(4, "big").hex() + label.encode().hex() + CONTEXT + "00000020" + cohort.digest().hex()


def test_seal_info_and_a_record_sealed_long_ago() -> None:
    assert seal_info(sealed_cohort()).hex() == opening("distrust seal v3", sealed_cohort())
    record = bytes.fromhex(
        "b82432f673aece0196868b77e43ab27498277ddc73f494a5e4f9e28759e4fd0c072da8fb3e884526cc149ea3af9d5ffe"
        "329d6e81470bb9bfab0ffbcd1a52586daebded"
    )
    assert open_record(X25519PrivateKey.from_private_bytes(KEY), sealed_cohort(), record) == (bytes(range(16)), b"abc")


def test_a_claim() -> None:
    """Slot, eight bytes, and secret, 32, each behind its length; before them stands what every context begins with."""
    text = bytes.fromhex(opening("distrust claim v3", sealed_cohort()) + "000000080000000000000003" + "00000020")
    assert claim(sealed_cohort(), 3, KEY) == hashlib.sha256(text + KEY).digest()


def test_the_hash_of_keys() -> None:
    """SHA-256 of protocol and purpose, each behind its length, and the 64 bytes."""
    text = b"\0\0\0\x12distrust secagg v3" + b"\0\0\0\x0bpublic keys" + KEY + KEY
    assert key_hash(KEY + KEY) == hashlib.sha256(text).digest()


def test_statements() -> None:
    """SHA-256 of the cohort's context, the stage, and its fields, each behind its length."""
    cohort = make_cohort(4, 10, 3)
    roster = Roster(cohort, b"\x0f", bytes.fromhex(ROSTER))
    start = bytes.fromhex(opening("distrust statement v3", cohort))

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
    start = bytes.fromhex(opening("distrust secagg v3", cohort)) + b"\0\0\0\x09challenge"
    hashes = [
        hashlib.sha512(start + b"\0\0\0\x08" + i.to_bytes(8, "big") + b"\0\0\0\x20" + KEY).digest() for i in (1, 2)
    ]
    factors = Binding(cohort).challenge(KEY)
    assert list(factors) == [int.from_bytes(result, "big") % (2**130 - 6) + 1 for result in hashes]
    assert blend(factors, [(2, 3, 4)]) == ((2 * factors[0] + 3 * factors[1] + 4) % PRIME).to_bytes(17, "big")


def test_derived_keys() -> None:
    names, private = Binding(make_cohort(4, 10, 3)), X25519PrivateKey.from_private_bytes(KEY)
    public = private.public_key().public_bytes_raw()
    assert names.self_mask(bytes(16), 2).hex() == "ee3f10adad4ae65a597f06f385699e3336457af527eb61cc2d126956556ec516"
    assert (
        names.pair_mask(private, public, 2, 1).hex()
        == "a583daa38e400eecaf49f50e21262e193852afc18a338b66bc1499ae4b19298a"
    )
    assert (
        names.channel(private, public, 1, 2).hex() == "94d3587a9c4adcaf04e6bfef956273858b01c9b50371fdb15e757958e844a5bc"
    )
    assert names.commitment(bytes(16), 2).hex() == "f7b1bddc63ec14449711d9db66d69818f29d85f3fce6e9a90a39822c676ec946"
    assert pair_from_seed(bytes(16)).public_key().public_bytes_raw().hex() == (
        "8d2a4410fb9d38bdd57b649174f19f9cd32f4f6a2cecdee13c28ea6cd5b0e92b"
    )


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Return four clients with known seeds, keys and polynomials. Slot 3 is lost before it sends its vector."""
    counter = itertools.count()

    def draw() -> bytes:
        return hashlib.sha256(b"golden %d" % next(counter)).digest()

    monkeypatch.setattr(secagg, "new_seed", lambda: bytearray(draw()[:16]))
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
    roster = Roster(cohort, b"\x0f", bytes.fromhex(ROSTER))
    commitments = {i: bytes.fromhex(COMMITMENTS)[32 * i : 32 * i + 32] for i in range(4)}
    confirmed = {i: bytes.fromhex(body) for i, body in enumerate(CONFIRMED)}
    masked = {i: bytes.fromhex(body) for i, body in enumerate(MASKED)}
    answers = {i: bytes.fromhex(body) for i, body in enumerate(ANSWERS)}
    verdict = protocol.close_confirm(Sharing(roster, range(4)), confirmed)
    result = unmask_total(verdict, masked, sum_masked(cohort, masked.values()), commitments, answers)
    assert (result.total.tolist(), result.liars, result.disputes) == ([9, 2, 5], (), 0)


ROSTER = (
    "3978442645d04521bd098384cff47e9cbd8bf37d92e416c474691f276eb2810d2ade8be4440ee248379946f89ef4c125"
    "21e81d1b7842818b174036e78572c6052d11c74679f1781f72d1927b3b323b19ffac86497ae5904f3c2bfd9184d4852f"
    "f74a9e952aebac783f16dee2272e5dc33a8c10ec15fa2449a4ee9208a216982d96e56219b25729d75cf16af2f9eb70d4"
    "e0ed54647f5d565fb9784ffc92b5625788124da61df5ab80d976b4a2de458152374d50e6a1e3d1b3d25b3afaf279331b"
    "432c107df7bdc57a90b47b0d46fcc8712721a56110f616a50765c79e436b3c3531b14339c620923a24d8115017793679"
    "92b9e604eafc97ba2dbd32ad8e473439"
)
SHARES = (
    "c38d95bf219d8eb097d9d1c5dc19327e72ab87b4e4e883332fbad795eb002839c0286fc4fc24a1795dda5fd6ec45c8e3"
    "7f62fe28357536bcfc6957d123ccc7456c9ab69c61fc5f02a6baa7d15bab60f6798822fd2edc36a22e073358bcbaaa1b"
    "753f1712486e61d2cbd262f90c2ed19a99fb5fd3e2110b42ab1af47a93c71f4e56dd21050c7cbcff3aac3a16707837d3"
    "fbeff2f824cb9170133d5a4f274042e0b3413eedf68b2d331e68c678150fe8214b886a1abdcbe28bc092d921a86260b5"
    "6d0bc31fe1392b1663d857d599f7ac85c9716a5751539f3e366b15fe6092f58d6195cd242ee5c8a0bc"
)
INBOX = (
    "4599d9d48e5f7573e1b856725513774f9264b1bd5dd47dd4c3ae936b4afdd2ba0521a606e21164d8e3bd6ca3800126c6"
    "2fca353bc02e055bec03e94a86b40e25fcac7bb42cc5b2720d2f548c9766727e0c45e23bddfa58107aaeb46f34f14bcd"
    "38f09c5cdfff9f8e603ad50b10319772017200bfe2c1b4da969a7923fb9411fc3c4127afcfbae352f508b959181ba482"
    "ad6dd9c17dff929e35c5f5e697a916a2b1114ab5c8357c8ec47cb4f7cbfdec86ec4de3c22171921b2043ebf47b7c6c7c"
    "df5d0292aa159d05fc"
)
COMMITMENTS = (
    "c38d95bf219d8eb097d9d1c5dc19327e72ab87b4e4e883332fbad795eb0028399e224534c8d7f877b197b956d2c9d343"
    "95ff2540c8a960c16c634a2e8a04f114a9c226a558cb46f7ec85c4febefe03cd5cea31f2d2a08a8ded098a744e8f87e5"
    "9af942d27b3d4c5a907f2129a87923600c69d4f00007319abcaeecb78d9d42ca"
)
CONFIRMED = (
    (
        "032a9195ca54ff16e0b00359fe1a2a728f02ea09f4a5c9e00c43c84a26ca9ca984c601f42d260677e7eb9195fef4e606"
        "7435e80175c2d6cd0f303b9f8a197b2548941fe602d18311f2d7b21134e550b5e5b1abbb02"
    ),
    (
        "01ab41e212ec8ba22dc7dc1548fba71bbf0048eb43f38b5c4963ce22df9d0acd1a2902149b8a701edf2324784d80c8b6"
        "d3f75a03713e0504a791007d289a11a2a608360a027012c51211dadaf59c4a3ec4cb3bd3c3"
    ),
    (
        "037a47a89576cf76c1eb98e4a7eb2009bd01fb7b2e379860c4dd9e80967d5d74162400fea57f15e8bf2f684097a79353"
        "7d7c25023d1869fa034434f56421d48311415011020ea278314c03a4b65343c7a3e4cbec84"
    ),
    (
        "0332f35ed39d8947742e572d06981ba241039e8fb31f3a28c9c0b6f988df199018bc03e8af73bbb29f3bac08e1ce5df0"
        "2700eb028603aded8ea07e593244b4201c0e6a3a016cb9333c3ff1c55ac71aa820037c4c33"
    ),
)
MASKED = (
    "8890",
    "0170",
    "0670",
)
ANSWERS = (
    ("014df596bea5f0afc8ebcd15ebca213e0f00eaa7cc865a6fa3c52aaddd042fbbc37d004d37b92fa5883612a20407216bef19f0"),
    ("014489c7904baac6bc916b984a2acaf67a01b2d86e2635cf6d99bdcdd234669f70c1008a4e08bdae1e951685214e73bd5d17f3"),
    ("01e2b51e94a43c871eb4990a5eaab5c75e01a72fc7aee4cf1c5f7bb8b97d25a8139a00c764584bb6b4f41a683e95c60ecb15f6"),
)
STATEMENT = "374dd453140690b96999c64919ba5865febb93db64e51929f496753b193ab4a0"
