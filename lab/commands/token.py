"""`distrust token`: the operator's token, for services that are started one by one."""

from lab.commands.up import DataOption
from lab.console import out
from lab.folder import DEFAULT, Folder


def token(data: DataOption = DEFAULT) -> None:
    """Make the operator's token, once, and say where it is."""
    folder = Folder(data)
    folder.make()
    folder.make_token()
    out.print(str(folder.token_file), markup=False)
