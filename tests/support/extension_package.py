"""Writes a package of a user's own as pip installs it: one module, and metadata with entry points."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrust.lab.play.run_file import RunFile, parse_table

ENVIRONMENT = '''
from dataclasses import dataclass

import numpy as np

from distrust.client.environments.base import EnvironmentSpec, Seed
from distrust.client.environments.contextual import Contexts, ContextualSpec, GeneralizedLinear


class Coins(EnvironmentSpec):
    """Two coins, the second one better by `gap`."""

    name: str
    seed: Seed = None
    gap: float = 0.8

    def build(self):
        return World(self.name, np.array([0.5 - self.gap / 2, 0.5 + self.gap / 2]))


@dataclass(frozen=True)
class World:
    name: str
    means: np.ndarray

    @property
    def arms(self):
        return len(self.means)

    @property
    def best(self):
        return int(np.argmax(self.means))

    def rewards(self, arm, count, stream):
        words = stream.words(count)
        return ((words >> np.uint64(11)) * 2.0**-53 < self.means[arm]).astype(float)


class Shops(ContextualSpec):
    """Three shops of one `theta`; every fourth client has contexts of length 2."""

    name: str
    seed: Seed = None

    def build(self):
        return Streets(self.name, 3, np.array([[0.6, 0.0]]), "identity", "single", (0.0, 1.0))


class Streets(GeneralizedLinear):
    def contexts(self, count, stream):
        features = np.tile(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), (count, 1, 1))
        features[::4] *= 2
        return Contexts(features, (stream.words(count) >> np.uint64(11)) * 2.0**-53)


class Seedless(EnvironmentSpec):
    name: str

    def build(self):
        return World(self.name, np.array([0.1, 0.9]))


class Unbuilt(EnvironmentSpec):
    name: str
    seed: Seed = None


class Unnamed(EnvironmentSpec):
    seed: Seed = None

    def build(self):
        return World("", np.array([0.1, 0.9]))


class OneArm(EnvironmentSpec):
    name: str
    seed: Seed = None

    def build(self):
        return World(self.name, np.array([0.5]))


class Unfinished(EnvironmentSpec):
    name: str
    seed: Seed = None

    def build(self):
        return object()
'''


POLICY = '''
from typing import ClassVar

from distrust.common.specs.base import PolicySpec
from distrust.server.policies.base import Ask, Interval, Query


class HalvingSpec(PolicySpec):
    """Batches of `clients` an arm; the worse half drops out after each."""

    POLICY: ClassVar[str] = "MODULE:Halving"

    name: str
    clients: int = 100

    def stated_failure(self, calibration, events):
        return None

    def event_probability(self, size):
        return 1e-3


class Halving:
    def __init__(self, arms, clients):
        self.active, self._latest, self._batch, self._clients = tuple(range(arms)), {}, 1, clients

    @classmethod
    def of(cls, spec, run):
        return cls(run.arms, spec.clients)

    @property
    def intervals(self):
        return tuple(self._latest[arm] for arm in sorted(self._latest))

    @property
    def latest_intervals(self):
        return tuple(one for one in self.intervals if one.batch == self._batch - 1)

    @property
    def chosen(self):
        return max(self.active, key=lambda arm: self._latest[arm].mean) if self._latest else None

    def ask(self, left):
        ask = Ask(self._batch, tuple(Query(arm, self._clients) for arm in self.active))
        return ask if ask.size <= left and len(self.active) > 1 else None

    def tell(self, estimates):
        for one in estimates:
            mean = one.sums[0] / one.counts[0]
            self._latest[one.arm] = Interval(one.arm, self._batch, mean, mean - 0.5, mean + 0.5)
        best = sorted(self.active, key=lambda arm: -self._latest[arm].mean)
        self.active = tuple(sorted(best[: max(1, len(best) // 2)]))
        self._batch += 1

    def leftover(self, left):
        return {self.active[0]: left} if left else {}


class Homeless(PolicySpec):
    name: str

    def event_probability(self, size):
        return 1e-3


class Silent(PolicySpec):
    POLICY: ClassVar[str] = "MODULE:Halving"
    name: str


class Lost(PolicySpec):
    POLICY: ClassVar[str] = "MODULE:Nowhere"
    name: str

    def event_probability(self, size):
        return 1e-3


class Half(PolicySpec):
    POLICY: ClassVar[str] = "MODULE:World"
    name: str

    def event_probability(self, size):
        return 1e-3


class World:
    active = ()


class Made(PolicySpec):
    POLICY: ClassVar[str] = "MODULE:Made_"
    name: str

    def event_probability(self, size):
        return 1e-3


class Made_:
    @classmethod
    def of(cls, spec, run):
        return cls()
'''


MECHANISM = '''
from fractions import Fraction
from typing import ClassVar

from distrust.common.dp.mechanisms.families.base import Mechanism, needed
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.dp.mechanisms.families.laplace import LaplaceLike, little_rounding
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference


class Twofold(LaplaceLike):
    """Discrete Laplace noise of half the epsilon that is asked for, at each client."""

    model: ClassVar[str] = "local"
    vias: ClassVar[tuple[str, ...]] = ("shuffler", "aggregator")

    name: str

    @classmethod
    def plan(cls, spec, cohort):
        epsilon = needed(spec) / 2
        precision = spec.precision or little_rounding(cohort, epsilon, cohort.clients, 0.01)
        total = PolyaDifference(Fraction(cohort.clients), precision * cohort.dimension / epsilon)
        shared = cohort.shared(precision, cohort.room(precision, total))
        return cls.model_validate({**shared, "name": spec.name, "epsilon": epsilon})

    def client_law(self):
        return DiscreteLaplace(self.scale)

    def privacy(self, survivors=None, colluders=0):
        return self.one_term_privacy("each client's own device draws its noise")

    def error(self, survivors):
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)


class Nameless(Twofold):
    @classmethod
    def plan(cls, spec, cohort):
        return super().plan(spec, cohort).model_copy(update={"name": "another"})


class Silent(GridMechanism):
    model: ClassVar[str] = "local"
    name: str


class Modelless(Mechanism):
    name: str
    bits = rounding = property(lambda self: 0)

    @classmethod
    def plan(cls, spec, cohort): ...

    def randomize(self, vectors, stream): ...

    def estimate(self, total, survivors, stream): ...

    def privacy(self, survivors=None, colluders=0): ...

    def error(self, survivors): ...
'''

STREAM = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from distrust.common.dp.mechanisms.central.additive import UnsafeIdentity


class Running(UnsafeIdentity):
    """Prefix sums without noise."""

    takes_batches: ClassVar[bool] = True

    name: str
    batches: Annotated[int, Field(ge=1)]

    @classmethod
    def plan(cls, spec, cohort):
        shared = cohort.shared(1000, cohort.room(1000, None))
        return cls(**shared, name=spec.name, batches=spec.batches)

    @property
    def stream_length(self):
        return self.batches

    @property
    def nodes(self):
        return 1

    def counter(self):
        return Total(self, np.zeros(self.dimension))


@dataclass(frozen=True)
class Total:
    mechanism: Running
    prefix: np.ndarray
    batch: np.ndarray | None = None

    def add(self, total, survivors, stream):
        batch = self.mechanism.estimate(total, survivors, stream)
        after = Total(self.mechanism, self.prefix + batch, batch)
        return after, after

    def restored(self, batches):
        return Total(self.mechanism, batches[-1][2]) if batches else self


class Uncounted(UnsafeIdentity):
    takes_batches: ClassVar[bool] = True
    name: str

    @property
    def stream_length(self):
        return 20
'''


def install(folder: Path, module: str, text: str, entries: dict[str, dict[str, str]], version: str = "1.2.3") -> None:
    """Write `module`.py and the metadata of the distribution `module`-dist; entries: group → name → reference."""
    (folder / f"{module}.py").write_text(text, "utf-8")
    info = folder / f"{module}_dist-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-dist\nVersion: {version}\n", "utf-8")
    (info / "top_level.txt").write_text(f"{module}\n", "utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {ref}\n" for name, ref in named.items()) for group, named in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")


Own = Callable[[str, str, dict[str, str]], str]


def run_of(environment: dict[str, Any], run: str = "own", horizon: int = 700, **tables: dict[str, Any]) -> RunFile:
    """Return a seeded run of small cohorts, with these tables in place of its own."""
    mechanism = {"name": "local-laplace-discrete", "via": "shuffler", "epsilon": 8.0}
    own = {"policy": {"first_batch": 6}, "mechanism": mechanism, "intermediary": {"minimum": 4}}
    more = {"unsafe": {"noise_seed": 3}, "fleet": {"processes": 1}, "environment": {"seed": 5, **environment}}
    return parse_table({"run": run, "horizon": horizon, **own, **more, **tables})
