"""The environment that MPI programs on this machine alone need."""

import os


def environment(**more: str) -> dict[str, str]:
    """Root may launch; a program that fails is ended at once, where Open MPI would wait for two seconds."""
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_odls_base_sigkill_timeout": "0",
        **more,
    }
