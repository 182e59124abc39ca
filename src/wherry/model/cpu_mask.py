"""Features of processors that the ranks of a cluster do without, so that they can continue where these are lacking.

glibc chooses its functions by the processor's features when a program starts; `GLIBC_TUNABLES` has it choose as if some
were not there. Source of its names: the manual of the GNU C Library, "Hardware Capability Tunables" (glibc.cpu.hwcaps).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

VARIABLE = "GLIBC_TUNABLES"
_GLIBC = {
    "abm": "LZCNT", "avx": "AVX", "avx2": "AVX2", "avx512bw": "AVX512BW", "avx512cd": "AVX512CD",
    "avx512dq": "AVX512DQ", "avx512er": "AVX512ER", "avx512f": "AVX512F", "avx512pf": "AVX512PF",
    "avx512vl": "AVX512VL", "bmi1": "BMI1", "bmi2": "BMI2", "erms": "ERMS", "fma": "FMA", "fma4": "FMA4",
    "fsrm": "FSRM", "movbe": "MOVBE", "popcnt": "POPCNT", "rtm": "RTM", "sse4_1": "SSE4_1", "sse4_2": "SSE4_2",
    "ssse3": "SSSE3", "xsavec": "XSAVEC",
}  # fmt: skip
"""Features that glibc can be set to do without, from their names in /proc/cpuinfo to its own."""


def masked(env: Mapping[str, str], features: Collection[str]) -> dict[str, str]:
    """The environment of a program that does without these features. The user's settings there stay."""
    names = sorted(_GLIBC[name] for name in features if name in _GLIBC)
    if not names:
        return dict(env)
    ours = "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in names)
    return {**env, VARIABLE: ":".join(filter(None, (env.get(VARIABLE), ours)))}
