"""Golden bytes of secure aggregation and of seals: whoever changes them changes the protocol, and its version."""

import hashlib
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator import protocol
from client import masking_secrets
from common.crypto import share
from common.crypto.binding import Binding
from common.crypto.claim import claim
from common.crypto.graph import permutation
from common.crypto.mask import expand
from common.crypto.seal import open_record, seal_info
from common.crypto.share import evaluate_pair
from common.messages.cohort import Cohort, Sealed
from common.modular import pack
from lab.secagg_simulation import Simulation, enrol, make_cohort

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
    assert expand(KEY, modulus, dimension).tolist() == values


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


def test_shares() -> None:
    first, second = [int.from_bytes(bytes(range(16)), "big"), 2**129 + 1, 7], [0, 1, 2**130 - 6]
    assert [pair.hex() for pair in evaluate_pair(first, second, 3)] == [
        "02000102030405060708090a0b0c0d0e170000000000000000000000000000000000",
        "00000102030405060708090a0b0c0d0e3203fffffffffffffffffffffffffffffff9",
        "02000102030405060708090a0b0c0d0e5603fffffffffffffffffffffffffffffff5",
    ]


def test_permutation() -> None:
    assert permutation(KEY, 12).tolist() == [0, 8, 1, 4, 5, 9, 3, 10, 7, 2, 11, 6]


def sealed_cohort() -> Cohort:
    public = X25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw()
    base = make_cohort(4, 10, 3)
    return base.model_copy(update={"channel": Sealed(size=3, server_key=public)})


def test_seal_info_and_a_record_sealed_long_ago() -> None:
    assert seal_info(sealed_cohort()).hex() == (
        "000000106469737472757374207365616c20763100000020000000000000000000000000000000000000000000000000"
        "00000000000000000000000a73696d756c6174696f6e0000000800000000000000010000000163"
    )
    record = bytes.fromhex(
        "e31722ee7b54591f37d3930f0d334bf8e5afd03ca051a80f3069ac99470b042907c54298e26100fa14e154f2b3c1e34b"
        "6ee43c0aafb80067378c27f88f0b6640c076af"
    )
    assert open_record(X25519PrivateKey.from_private_bytes(KEY), sealed_cohort(), record) == (bytes(range(16)), b"abc")


def test_a_claim() -> None:
    """Slot, eight bytes, and secret, 32, each behind its length; before them stands what every context begins with."""
    text = bytes.fromhex(
        "000000116469737472757374"
        "20636c61696d20763100000020000000000000000000000000000000000000000000000000"
        "00000000000000000000000a73696d756c6174696f6e0000000800000000000000010000000163"
        "000000080000000000000003"
        "00000020"
    )
    assert claim(sealed_cohort(), 3, KEY) == hashlib.sha256(text + KEY).digest()
    assert claim(sealed_cohort(), 3, KEY).hex() == "580427066c26f6404effd89717fe20d4e0065875a61c8c397bfffc6f75e4ac0b"


def test_derived_keys() -> None:
    names, private = Binding(make_cohort(4, 10, 3)), X25519PrivateKey.from_private_bytes(KEY)
    public = private.public_key().public_bytes_raw()
    assert names.self_mask(bytes(16), 2).hex() == "07e3e9a28ea3c152f362f79c257f591031ace7c2823215ab8f4bd242f063ba80"
    assert (
        names.pair_mask(private, public, 2, 1).hex()
        == "144903effd1d6581e1752896930ae1830b01214bf7611de89f2d2896773246df"
    )
    assert (
        names.channel(private, public, 1, 2).hex() == "da33c72f635eb91752030a58321aaf8ab7468406b7e10286bcca3497c9be167a"
    )
    assert names.commitment(bytes(16), 2).hex() == "b0ea07022bb7ce697827a513c7c495a455a46e215db2a0d669d79b13cf9d0e29"
    assert names.mask_pair(bytes(16)).public_key().public_bytes_raw().hex() == (
        "6ade4180a494a87d29b0d36b954f489f6a42a75ffd815b7dbac64aee26bf0c6e"
    )


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Four clients with known seeds, keys and polynomials; slot 3 is lost before it sends its vector."""
    counter = itertools.count()

    def draw() -> bytes:
        return hashlib.sha256(b"golden %d" % next(counter)).digest()

    monkeypatch.setattr(masking_secrets, "new_seed", lambda: draw()[:16])
    monkeypatch.setattr(masking_secrets, "new_pair", lambda: X25519PrivateKey.from_private_bytes(draw()))
    monkeypatch.setattr(share, "_uniform", lambda count: [int.from_bytes(draw()[:16], "big") for _ in range(count)])
    simulation = enrol(make_cohort(4, 10, 3, dropout=0.25), dropout=0.25)
    simulation.send_keys(range(4))
    simulation.send_shares(range(4))
    simulation.send_masked(range(3), np.arange(12, dtype=np.uint64).reshape(4, 3) % np.uint64(10))
    simulation.send_unmask(range(3))
    return simulation


def test_the_bodies_of_all_stages(simulation: Simulation) -> None:
    assert simulation.keys[0].hex() == (
        "2c4fb76b49e4644533da9d2447c5504669c1ac6c71f019af5b77941b38e7437a2ade8be4440ee248379946f89ef4c125"
        "21e81d1b7842818b174036e78572c605"
    )
    assert simulation.shares[0].hex() == (
        "fa84468088aa38505f141d014faf8c5382435b24349b41d0cdbcb38509be0f6f5c0dfddff67b68df97da26dee78fdb45"
        "22db03f28f64bf46d789abde6e500c8f31111ea4dd2754a2c47261c95142ed40eb33bd5791eb80187ba81852eba0493b"
        "d030a8eeba6458264cca26f4743c481b6eca8256219c06606eea867a5e58ccb94fcb3af0ca7591043062632956316dfd"
        "573af5579728dc56426eb5f5f05363f9ae2f98b9e517129ea76742dc73133ad3d917c7ae9edb"
    )
    assert simulation.inboxes[0].hex() == (
        "04e21a5a500a3c892074aa8590790042f71c2736f1778591efc9a8f802cb3dfa0b59de8a22411718168197ea8b1e4d6e"
        "7299980d175bb7b84fd7b78f60f6655231626bbb6927adc0af9327f4a81134d442b939a1ebd1e5785746f222c3b5d50a"
        "9540ba72c7838e03c5c760be54a679f1df7a47261e78cae65aa564f8a35b24211ab47dae2b781a7df7c57cdc20540dd4"
        "9cc594a189d3"
    )
    assert simulation.masked[0].hex() == "3960"
    assert simulation.answers[0].hex() == (
        "019ab69b36ce73bf23e1add4ae03441d9e007bb15bd6bdee468727798b65545eebc400f445017664bb1d39c2ab811408f916b3"
    )
    assert simulation.bitmap(simulation.masked).hex() == "07"
    assert simulation.recover().tolist() == [9, 2, 5]


def test_recorded_bodies_still_add_up() -> None:
    """The other direction: bytes of these clients, as recorded, are read by today's aggregator."""
    cohort = make_cohort(4, 10, 3, dropout=0.25)
    roster = protocol.Roster(cohort, b"\x0f", bytes.fromhex(ROSTER))
    commitments = {i: bytes.fromhex(COMMITMENTS)[32 * i : 32 * i + 32] for i in range(4)}
    masked = {i: bytes.fromhex(body) for i, body in enumerate(MASKED)}
    answers = {i: bytes.fromhex(body) for i, body in enumerate(ANSWERS)}
    assert protocol.recover(cohort, roster, range(4), masked, commitments, answers).tolist() == [9, 2, 5]


ROSTER = (
    "2c4fb76b49e4644533da9d2447c5504669c1ac6c71f019af5b77941b38e7437a2ade8be4440ee248379946f89ef4c125"
    "21e81d1b7842818b174036e78572c6059392dc3cf30fcafe2321eda02d4ed04c7e856518b22c772433446cff1798f402"
    "f74a9e952aebac783f16dee2272e5dc33a8c10ec15fa2449a4ee9208a216982d4c5b0463aab5fb24b5194cf806bd888f"
    "39be597e8864325fe33b7034d21a384188124da61df5ab80d976b4a2de458152374d50e6a1e3d1b3d25b3afaf279331b"
    "a39aabf6a8e32a6b0ae06d1adde33787911c2708d36d815e76e38cc61d54262731b14339c620923a24d8115017793679"
    "92b9e604eafc97ba2dbd32ad8e473439"
)
COMMITMENTS = (
    "fa84468088aa38505f141d014faf8c5382435b24349b41d0cdbcb38509be0f6f54caa10f24d20865a7cc444ac14451a4"
    "f7418776497e8063289c6339e9b9977e66453f99c5f738d8665761912e38197dde9ccb15e270d0bdcc54fc9a6243ddac"
    "311583c870d8dc718775280be3a2be1f4e336bd24d9d0f8f6f1c8b71857e2df1"
)
MASKED = ("3960", "9810", "1580")
ANSWERS = (
    "019ab69b36ce73bf23e1add4ae03441d9e007bb15bd6bdee468727798b65545eebc400f445017664bb1d39c2ab811408f916b3",
    "014489c7904baac6bc916b984a2acaf67a00d4eb8cc6fcccb31db7652ef6afe5c14f01d868994b2c846364c6704258f7711179",
    "01e2b51e94a43c871eb4990a5eaab5c75e0240b1d09f35d53b15677a370197edd2b802bc8c311ff44da98fca35039de5e90c3f",
)
