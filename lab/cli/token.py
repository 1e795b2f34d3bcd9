"""`distrust token`: the operator's and the inspector's token, for services that are started one by one."""

import typer

from distrust.lab.cli.console import out
from distrust.lab.cli.up import DataOption
from distrust.lab.stack.data_dir import DEFAULT, DataDir

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def token(data: DataOption = DEFAULT) -> None:
    """Make the operator's and the inspector's token, once."""
    folder = DataDir(data)
    folder.make()
    folder.make_tokens()
    out.print(f"{folder.token_file}\n{folder.inspector_file}", markup=False)
