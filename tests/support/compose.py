"""Reads docker-compose.yml as data, and starts its services as commands on loopback. A test's tool, not a test."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.forked import Process
from tests.support.proxy import HAPROXY

ROOT = Path(__file__).parents[2]
ENTRYPOINT = "distrust.lab"  # the image's is `distrust`: the console script of the same module

Service = dict[str, Any]


def load() -> dict[str, Any]:
    """Return the file with its anchors resolved."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    return parsed


def mounts(service: Service) -> dict[str, str]:
    """Return the named volumes of a service: path in the container → volume."""
    return {path: volume for volume, path in (entry.split(":")[:2] for entry in service.get("volumes", []))}


@dataclass(frozen=True)
class Loopback:
    """Stands in for Docker: volumes are folders, service names are 127.0.0.1, ports are free ones.

    files  paths inside the image → files here.
    """

    folder: Path
    ports: dict[str, int]
    files: dict[str, Path]

    def translate(self, text: str, service: Service) -> str:
        """Return a setting of a service with this machine's paths, ports and host in place of the image's."""
        for inside, here in self.files.items():
            text = text.replace(inside, str(here))
        for inside, volume in mounts(service).items():
            text = text.replace(f"{inside}", str(self.place(volume))) if text_names(text, inside) else text
        ports = "|".join(map(re.escape, self.ports))
        text = re.sub(rf"(?<!\d)({ports})(?!\d)", lambda found: str(self.ports[found[1]]), text)  # all at once
        for host in load()["services"]:
            text = re.sub(rf"(^|//){host}:(?=\d)", r"\g<1>127.0.0.1:", text)
        return "127.0.0.1" if text == "0.0.0.0" else re.sub(r"^:(?=\d+$)", "127.0.0.1:", text)

    def place(self, volume: str) -> Path:
        """Return the folder of a volume: inside another's where a service mounts it there."""
        for service in load()["services"].values():
            own = {name: path for path, name in mounts(service).items()}
            for outer, name in mounts(service).items():
                if own.get(volume, "").startswith(f"{outer}/"):
                    return self.place(name) / own[volume].removeprefix(f"{outer}/")
        return self.folder / volume

    def start(self, service: Service, log: Path) -> subprocess.Popen[bytes]:
        """Start the service's command with the service's environment."""
        for volume in mounts(service).values():
            self.place(volume).mkdir(mode=0o700, parents=True, exist_ok=True)
        given = [self.translate(word, service) for word in service["command"]]
        log.touch()
        if given[0] == "haproxy":  # the program of another image; it is installed here
            with log.open("ab") as output:
                return subprocess.Popen([HAPROXY, "-db", *given[1:]], stdout=output, stderr=output)
        words = [ENTRYPOINT, *given]
        return Process(words, self.environment(service), log, ROOT)

    def environment(self, service: Service) -> dict[str, str]:
        """Return the service's variables, and of this process's only PATH, HOME and LANG."""
        ours = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        declared = {name: self.translate(value, service) for name, value in service.get("environment", {}).items()}
        return {**ours, **declared}

    def healthy(self, service: Service) -> bool:
        """Run the service's health check once, and return True if it succeeds."""
        kind, program, *words = service["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "distrust")
        command = [ENTRYPOINT, *(self.translate(word, service) for word in words)]
        return Process(command, self.environment(service), self.folder / "health.log", ROOT).wait(300) == 0


def text_names(text: str, inside: str) -> bool:
    """Return True if a setting names a path below `inside`: alone, after an equals sign, or in a database URL."""
    return text.startswith((inside, f"sqlite:///{inside}")) or f"={inside}" in text
