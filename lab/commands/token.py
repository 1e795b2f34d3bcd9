"""`distrust token`: the operator's and the inspector's token, for services that are started one by one."""

from lab.commands.up import DataOption
from lab.console import out
from lab.folder import DEFAULT, Folder


def token(data: DataOption = DEFAULT) -> None:
    """Make the operator's and the inspector's token, once."""
    folder = Folder(data)
    folder.make()
    folder.make_tokens()
    out.print(f"{folder.token_file}\n{folder.inspector_file}", markup=False)
