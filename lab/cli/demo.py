"""`distrust demo`: the main job, end to end, on this machine."""

import shutil
import sys
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import typer

from distrust.lab.cli.console import err, out
from distrust.lab.cli.run import JsonOption, deliver, on_own_stack
from distrust.lab.cli.up import DataOption, PortOption
from distrust.lab.run.run_file import read
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import BASE_PORT

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def demo(data: DataOption = DEFAULT, port_base: PortOption = BASE_PORT, json: JsonOption = None) -> None:
    """Find the best of ten arms of real ratings that nobody sees."""
    with resources.as_file(resources.files("distrust.lab") / "runs" / "demo.toml") as path:
        file = read(Path(path))
    file = file.renamed(f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    config = file.config
    err.print(f"{config.arms} arms of MSLR-WEB30K ratings, at most {config.horizon:,} clients; data and logs in {data}")
    result = on_own_stack(file, DataDir(data), port_base)
    deliver(result, json)
    if json != "-":
        us, where = _our_name(), "" if data == DEFAULT else f" --data {data}"
        out.print(f"messages    {us} inspect {config.run}{where}")
        out.print(f"APIs        {us} up{where}, then http://127.0.0.1:{BASE_PORT}/openapi.json")


def _our_name() -> str:
    """What to type for `distrust`: its path, where the shell would not find it."""
    me, found = Path(sys.argv[0]), shutil.which("distrust")
    known = found is not None and Path(found).resolve() == me.resolve()
    return "distrust" if known or me.name != "distrust" else str(me)
