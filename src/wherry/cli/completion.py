"""`wherry completion`."""

from __future__ import annotations

from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion of commands, options and names for a shell.

    bash: wherry completion bash >/etc/bash_completion.d/wherry; zsh: wherry completion zsh >DIRECTORY/_wherry with a
    DIRECTORY of fpath; fish: wherry completion fish >~/.config/fish/completions/wherry.fish.

    Parameters
    ----------
    shell
        The shell.
    """
    from wherry.cli.main import make_app

    print(make_app(brief=False).generate_completion(shell=shell))
