"""Libraries that are imported when they are first used, because they are slow to import or extras that may be missing.

Most commands and services do without them, and a start would spend most of its time on them.
"""

from importlib import import_module
from typing import Any

EXTRAS = {"joblib": "lab", "matplotlib": "lab", "pandas": "lab", "pyarrow": "lab", "sklearn": "mslr"}
"""Libraries that only some names and commands need, with the extra of ours that installs them."""


class _Late:
    """A module that is imported when one of its names is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


def late(module: str) -> Any:
    """Return a stand-in for a module, which is imported when one of the names is first used.

    A file that needs a module of ours late imports it where TYPE_CHECKING holds, and names it here otherwise: so mypy
    and the contracts of imports see it.

    Raises ModuleNotFoundError at the first use of a module that is not installed.
    """
    return _Late(module)


# Of SciPy, half a second in all.
integrate = late("scipy.integrate")
optimize = late("scipy.optimize")
special = late("scipy.special")
stats = late("scipy.stats")

# Of dp-accounting, most of a second.
losses_of = late("dp_accounting.pld.privacy_loss_distribution")
masses_of = late("dp_accounting.pld.pld_pmf")

mpmath = late("mpmath")  # a twentieth of a second
jinja2 = late("jinja2")  # a service that starts needs no template
pydantic = late("pydantic")  # `distrust --version` needs none of it

# Of extras. scikit-learn and pandas take a second each; pyarrow takes 60 MB of memory.
linear_model = late("sklearn.linear_model")
clustering = late("sklearn.cluster")
preprocessing = late("sklearn.preprocessing")
sampling = late("sklearn.utils.random")
pandas = late("pandas")
pyarrow = late("pyarrow")
parquet = late("pyarrow.parquet")
pyplot = late("matplotlib.pyplot")  # chooses a window system when it is imported
dask = late("dask")
distributed = late("distributed")
ray = late("ray")
ray_joblib = late("ray.util.joblib")


def lacking(error: ModuleNotFoundError, what: str) -> str | None:
    """Return how to install the extra that is missing; None where the missing module is no extra's.

    what  needs it, with the verb: "this command needs".
    """
    library = (error.name or "").partition(".")[0]
    return f"{what} {library}: pip install 'distrust[{EXTRAS[library]}]'" if library in EXTRAS else None
