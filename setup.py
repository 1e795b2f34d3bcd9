"""Builds the sdist as the checkout is: the six folders at the root, and links to them below src/distrust.

setuptools follows links and writes copies below src/distrust alone. Then neither the README's paths nor those of the
Dockerfile and of the tests would lead anywhere. All else of the build is in pyproject.toml.
"""

from collections.abc import Sequence
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

PACKAGE = Path("src", "distrust")


class LinkedSdist(sdist):
    """Writes the sdist, in which what is a link below src/distrust here is that link again."""

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        """Write the folder that becomes the archive."""
        super().make_release_tree(base_dir, files)
        for link in (path for path in PACKAGE.iterdir() if path.is_symlink()):
            copied, target = base_dir / link, link.readlink()
            copied.rename(copied.parent / target)
            copied.symlink_to(target)


setup(cmdclass={"sdist": LinkedSdist})
