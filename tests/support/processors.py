"""Lists the sets of features of this processor that tests compare, each as variables of a process.

A process takes its matrix kernels from OpenBLAS, its vector loops from NumPy and its elementary functions from glibc,
each by what the processor can do. Variables in the environment take abilities away; the processor itself is never
left out, so that at least two sets are compared on every machine.

`python -m tests.support.processors` prints the variables of `ELSEWHERE`, one a line: CI plays the fast tests with them.
"""

import os
import sys
from pathlib import Path

from numpy._core import _multiarray_umath as umath
from threadpoolctl import threadpool_info

ROOT = Path(__file__).parents[2]
FOUND = [feature for feature in umath.__cpu_dispatch__ if umath.__cpu_features__.get(feature, False)]
"""What NumPy would use and can be told not to; it warns about the name of anything else."""

OWN = {library.get("architecture") for library in threadpool_info()}  # the kernels that OpenBLAS chose by itself
WIDE = [feature for feature in FOUND if "512" in feature or feature == "X86_V4"]

SETS: dict[str, dict[str, str]] = {
    "the processor": {},
    "the oldest": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": " ".join(FOUND),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX2_Usable,-FMA,-FMA_Usable,-FMA4",
    },
}
if WIDE and "SkylakeX" not in OWN:
    SETS["AVX-512"] = {"OPENBLAS_CORETYPE": "SkylakeX"}
if WIDE and umath.__cpu_features__.get("AVX2") and umath.__cpu_features__.get("FMA3"):
    SETS["AVX2"] = {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": " ".join(WIDE)}

ELSEWHERE = "AVX2" if "AVX2" in SETS else "the oldest"


def variables(name: str) -> dict[str, str]:
    """Return a set's variables, without the empty ones: they would name an unknown feature."""
    return {key: value for key, value in SETS[name].items() if value}


def environment(name: str) -> dict[str, str]:
    """Return the variables of a process with a set of features, which imports the checkout."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path, **variables(name)}


if __name__ == "__main__":
    for variable, setting in variables(ELSEWHERE).items():
        sys.stdout.write(f"{variable}={setting}\n")
