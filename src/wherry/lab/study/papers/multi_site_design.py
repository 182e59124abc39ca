"""The factors of `multi-site`: programs, kinds of nodes, sites and ranks, VPN and latency of the link, and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from wherry.base.errors import Code, Refused
from wherry.lab.study import npb_counts, sites
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination, Factor, Level
from wherry.lab.study.requirements import LEAST_VM_MEMORY, VM, vms_are_emulated, why_no_vms
from wherry.lab.study.settings import BYTES, NAMES, NPB_CLASSES, NUMBERS, Setting

NATIVE, NODES, VMS, NPB_VMS = "native", "nodes", "vm", "vm-npb"
NATIVE_SMALL = "native-small"
"""Native runs of the size of emulated VM nodes, which are compared with these alone."""
EMULATED_SIZE = (NPB_VMS, NATIVE_SMALL)
"""Levels of the size for VM nodes without KVM."""
ONE, TWO = "one", "two"
NONE = "none"
NETPIPE = {
    "netpipe": ("openmpi", "NPopenmpi", "netpipe-openmpi"),
    "netpipe-mpich": ("mpich", "NPmpich2", "netpipe-mpich2"),
}
KERNELS = ("ep", "lu", "cg", "bt")
MPICH = "-mpich"
"""End of the name of a test that runs by MPICH, as the paper's did."""
SCALING_BASE = 4
"""Ranks to which the paper's speedup on one site is relative."""
CLASSES = {
    name: Setting(f"{name}.class", f"problem class of {name.upper()}", full, quick, paper="B", choices=NPB_CLASSES)
    for name, full, quick in (("ep", "A", "W"), ("lu", "W", "S"), ("cg", "A", "S"), ("bt", "W", "S"))
}
_TESTS = (*NETPIPE, *KERNELS, *(f"{kernel}{MPICH}" for kernel in KERNELS))
TESTS = Setting("tests", "tests that run", ",".join(_TESTS), ",".join(_TESTS), unit=NAMES, choices=_TESTS)
RANKS = Setting(
    "ranks",
    "ranks at one site; a program that does not run on so many has the next number, on one site the next smaller",
    4,
    4,
    paper=32,
    most=400,
)
SITES = Setting(
    "sites", "sites of a job that is spread, NPB; links lead from the first", 2, 2, least=2, most=len(sites.SITES)
)
_SCALES = "4,8,16,32,64,128"
SCALES = Setting(
    "scales",
    "further numbers of ranks at one site, of which a program has the next that it runs on, except numbers "
    "for which its class has no work",
    _SCALES,
    _SCALES,
    unit=NUMBERS,
    most=400,
)


def _latencies(name: str, text: str, full: str) -> Setting[str]:
    return Setting(name, text, full, "0,10", unit=NUMBERS, least=0, most=1000)


LATENCIES = _latencies("latencies", "latencies of the link in ms, one way", "0,1,5,10,50")
VPN_LATENCIES = _latencies(
    "vpn.latencies", "those of them at which NPB runs over VPNs, by MPICH and on VM nodes", "0,10"
)
HOST_CPUS = Setting(
    "host.cpus", "share of a processor that NPB's hosts have", sites.CPU_SHARE, sites.CPU_SHARE, least=0.2, most=1
)
NODE_MEMORY = Setting(
    "node.memory", "memory of NPB's nodes", 160 << 20, 160 << 20, unit=BYTES, least=64 << 20, most=1 << 40
)
EXCHANGES = Setting(
    "netpipe.exchanges", "NetPIPE's repetitions for each size at 0 ms; fewer over a latency", 100, 20, most=100_000
)
LARGEST = Setting(
    "netpipe.largest",
    "NetPIPE's largest message",
    8 << 20,
    1 << 20,
    unit=BYTES,
    least=64,
    most=1 << 30,
)
VM_RANKS = Setting("vm.ranks", "ranks at one site on VM nodes without KVM; each has as many", 2, 2, most=64)
VM_CPUS = Setting(
    "vm.cpus",
    "share of a processor that VM nodes without KVM have",
    sites.EMULATED_SHARE,
    sites.EMULATED_SHARE,
    least=0.2,
    most=1,
)
VM_MEMORY = Setting(
    "vm.memory", "memory of VM nodes", 256 << 20, 256 << 20, unit=BYTES, least=LEAST_VM_MEMORY, most=1 << 40
)
VM_LARGEST = Setting(
    "vm.largest",
    "NetPIPE's largest message between VM nodes",
    1 << 20,
    1 << 20,
    unit=BYTES,
    least=64,
    most=1 << 30,
)
VM_CLASS = Setting("vm.class", "problem class on VM nodes without KVM", "S", "S", choices=NPB_CLASSES)


def kernel_of(test: str) -> str:
    """NPB's program of a test."""
    return test.removesuffix(MPICH)


def _most_ranks(wanted: int) -> int:
    """Those of the program that needs most to have as many as are wanted."""
    return max(npb_counts.at_least(kernel, wanted) or 0 for kernel in KERNELS)


def combination_of(test: str, how: str, where: str = ONE, overlay: str = NONE, latency: str = "0") -> Combination:
    """A combination, by default on one site."""
    return Combination.of(test=test, how=how, where=where, overlay=overlay, latency=latency)


class MultiSiteDesign(Design):
    """Factors, combinations and sizes."""

    settings = (
        TESTS,
        *CLASSES.values(),
        *(RANKS, SITES, SCALES, LATENCIES, VPN_LATENCIES, HOST_CPUS, NODE_MEMORY, LARGEST, EXCHANGES),
        *(VM_RANKS, VM_CLASS, VM_CPUS, VM_MEMORY, VM_LARGEST),
    )
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {"ranks": (RANKS,), "sites": (SITES,)}

    def require_compatible_settings(self) -> None:
        all_of_them = {*self.numbers(LATENCIES), *self.numbers(VPN_LATENCIES)}
        if VPN_LATENCIES.name in self.given and len(all_of_them) > len(self.numbers(LATENCIES)):
            what = f"{VPN_LATENCIES.name}={VPN_LATENCIES.shown(self.value(VPN_LATENCIES))} is not valid"
            why = f"a link has one of {LATENCIES.name}: {self.value(LATENCIES)}"
            more = LATENCIES.shown(",".join(all_of_them))
            again = f"wherry study run {self.name} --set {VPN_LATENCIES.name}={self.given[VPN_LATENCIES.name]}"
            raise Refused(Code.USAGE, what, why, f"{again} --set {LATENCIES.name}={more}")

    def few_latencies(self) -> tuple[str, ...]:
        """Latencies at which NPB runs over VPNs: the usual ones if there are any, else the least."""
        there = self.numbers(LATENCIES)
        return tuple(ms for ms in self.numbers(VPN_LATENCIES) if ms in there) or there[:1]

    def sites_text(self, test: str) -> str:
        """At how many sites a test is that is at several; NetPIPE has two ranks."""
        count = 2 if test in NETPIPE else self.value(SITES)
        return "two sites" if count == 2 else f"{count} sites"

    def factors(self) -> Sequence[Factor]:
        only_full = "not with --quick" if self.quick else ""
        no_mpich = only_full or self.unavailable.get("mpiexec.mpich", "")
        kernels = {
            name: (f"NPB {name.upper()}, class {self.npb_class(name)}", only_full if name in ("lu", "bt") else "")
            for name in KERNELS
        }
        tests = (
            Level("netpipe", "NetPIPE, Open MPI", self.unavailable.get("NPopenmpi", "")),
            Level("netpipe-mpich", "NetPIPE, MPICH", only_full or self.unavailable.get("NPmpich2", "")),
            *(Level(name, text, left_out) for name, (text, left_out) in kernels.items()),
            *(Level(f"{name}{MPICH}", f"{text}, MPICH", no_mpich) for name, (text, _) in kernels.items()),
        )
        npb_vms = f"VM nodes (NPB; emulated, class {self.value(VM_CLASS)})" if self.emulated else "VM nodes (NPB)"
        how = (
            Level(NATIVE, "processes on the hosts"),
            Level(NODES, "container nodes"),
            Level(VMS, "VM nodes (NetPIPE)", why_no_vms(self.unavailable, self.quick)),
            Level(NPB_VMS, npb_vms, why_no_vms(self.unavailable, self.quick) or self._too_many_machines()),
            Level(NATIVE_SMALL, f"processes on the hosts, class {self.value(VM_CLASS)}", self._why_not_small()),
        )
        overlay = (
            Level(NONE, "no VPN"),
            *(
                Level(name, text, self.unavailable.get(name, ""))
                for name, text in (("openvpn", "OpenVPN"), ("wireguard", "WireGuard"), ("softether", "SoftEther"))
            ),
        )
        latency = tuple(Level(ms, f"{ms} ms") for ms in self.numbers(LATENCIES))
        return [
            Factor("test", "what runs", self.chosen(TESTS, tests)),
            Factor("how", "on what", how),
            Factor("where", "where the ranks are", tuple(self._wheres())),
            Factor("overlay", "the VPN between the sites", overlay),
            Factor("latency", "of the link, one way", latency),
        ]

    def scales(self) -> list[int]:
        """Numbers of ranks at one site."""
        return [int(ranks) for ranks in self.numbers(SCALES)]

    def _wheres(self) -> Iterator[Level]:
        """One site, the paper's other sizes of it, and several; those beyond the machine's size are left out."""
        each, share, count = self.value(RANKS), self.value(HOST_CPUS), self.value(SITES)
        yield Level(ONE, "one site", sites.why_not_carried(each, share, self.unavailable))
        yield from self._scales()
        every = _most_ranks(count * each)
        yield Level(TWO, self.sites_text(KERNELS[0]), sites.why_not_carried(every, share, self.unavailable))

    def _too_many_machines(self) -> str:
        """Why the machine does not carry the emulated VM nodes of NPB; empty if it does."""
        every = _most_ranks(self.value(SITES) * self.value(VM_RANKS))
        return sites.why_not_carried(every, self.value(VM_CPUS), self.unavailable) if self.emulated else ""

    def _why_not_small(self) -> str:
        """Why there are no native runs of the size of emulated VM nodes; empty if there are."""
        if why := why_no_vms(self.unavailable, self.quick) or self._too_many_machines():
            return why
        if not self.emulated:
            return "with KVM virtual machines run the size of the others"
        few = self.value(VM_RANKS) <= self.value(RANKS)
        return "" if few else f"{VM_RANKS.name} are more than {RANKS.name}, for which there are hosts"

    def _scales(self) -> Iterator[Level]:
        """The paper's other sizes of a single site; those beyond the machine's size are left out."""
        for ranks in self.scales():
            if ranks != self.value(RANKS):
                larger = self.quick and ranks > 2 * SCALING_BASE
                too_many = sites.why_not_carried(_most_ranks(ranks), self.value(HOST_CPUS), self.unavailable)
                left_out = "not with --quick" if larger else too_many
                yield Level(f"{ONE}-{ranks}", f"one site, {ranks} ranks", left_out)

    @property
    def emulated(self) -> bool:
        """True if VM nodes run without KVM: NPB has another size there."""
        return vms_are_emulated(self.unavailable) and VM not in self.unavailable

    def npb_class(self, kernel: str, how: str = NODES) -> str:
        """Problem class of a program of NPB."""
        return self.value(VM_CLASS) if how in EMULATED_SIZE and self.emulated else self.value(CLASSES[kernel])

    def scaled(self, ranks: int) -> str:
        """The level of one site with so many ranks."""
        return ONE if ranks == self.value(RANKS) else f"{ONE}-{ranks}"

    def ranks(self, combination: Combination) -> int:
        """A number that the program runs on: at several sites the next one, so there may be more hosts at the first."""
        kernel = kernel_of(combination["test"])
        if kernel not in KERNELS:
            return self._wanted(combination)
        wanted, size = self._wanted(combination), self.npb_class(kernel, combination["how"])
        more = None if combination["where"] == ONE else npb_counts.at_least(kernel, wanted, size)
        return more or npb_counts.at_most(kernel, wanted, size)

    def _wanted(self, combination: Combination) -> int:
        """Ranks that a combination is to have."""
        each = self.value(VM_RANKS if combination["how"] in EMULATED_SIZE and self.emulated else RANKS)
        where = combination["where"]
        if where == ONE:
            return each
        return self.value(SITES) * each if where == TWO else int(where.removeprefix(f"{ONE}-"))

    def _has_work(self, combination: Combination) -> bool:
        """Whether the class of a program has work for as many ranks."""
        kernel = kernel_of(combination["test"])
        if kernel not in KERNELS or combination["where"] == ONE:
            return True
        size = self.npb_class(kernel, combination["how"])
        return npb_counts.at_least(kernel, self._wanted(combination), size) is not None

    def hosts(self, how: str = NODES) -> sites.Hosts:
        """Limited hosts for the largest number of ranks that is measured at several sites, and at one."""
        count = self.value(SITES)
        small = self.value(VM_RANKS)
        if how in EMULATED_SIZE and self.emulated:
            first = _most_ranks(count * small) - (count - 1) * small
            return sites.Hosts.of(first, small, "v" if how == NPB_VMS else "", count)
        each, wheres = self.value(RANKS), self.factors()[2].measured()
        near = [_most_ranks(ranks) for ranks in self.scales() if self.scaled(ranks) in wheres and ranks != each]
        near += [each] if ONE in wheres else []
        if not self._why_not_small():
            near.append(_most_ranks(count * small) - (count - 1) * small)
        if TWO not in wheres:
            return sites.Hosts.of(max(near, default=0), 0, "", count)
        first = _most_ranks(count * each) - (count - 1) * each
        return sites.Hosts.of(max(first, *near), each, "", count)

    def fabric(self, overlay: str, latency: str) -> Mapping[str, Any]:
        """The fabric of a combination with this link, the same hosts for all. A host has room for a cluster of each
        size that it can be in at the same time, and for one of virtual machines."""
        share, nodes, machine = self.value(HOST_CPUS), self.value(NODE_MEMORY), self.value(VM_MEMORY)
        emulated = self.emulated and NPB_VMS in self.factors()[1].measured()
        rooms = (
            sites.Room(share, max(1 << 30, sites.clusters_on_host(share) * max(nodes, 0 if emulated else machine))),
            sites.Room(self.value(VM_CPUS), max(2 << 30, machine)),
            sites.Room(1.0, max(2 << 30, 2 * self.pipe_memory() + machine)),
        )
        machines = self.hosts(NPB_VMS) if emulated else sites.Hosts((), ())
        return sites.fabric(self.hosts(), overlay, latency, machines, rooms, self.value(SITES))

    def pipe_memory(self) -> int:
        """Memory in bytes of a container node for NetPIPE, which has two buffers of its largest message and more."""
        return max(256 << 20, 3 * self.value(LARGEST) + (192 << 20))

    def combinations(self) -> Sequence[Combination]:
        tests, hows, wheres, overlays, latencies = (factor.measured() for factor in self.factors())
        return [
            combination
            for test in tests
            for how, where, overlay, latency in self._variants(test, overlays, latencies)
            if how in hows and where in wheres
            if self._has_work(combination := combination_of(test, how, where, overlay, latency))
        ]

    def _variants(
        self, test: str, overlays: Sequence[str], latencies: Sequence[str]
    ) -> Iterator[tuple[str, str, str, str]]:
        """The levels that a test is combined with: all for NetPIPE, VPNs at two latencies only for NPB, fewer by MPICH
        and with --quick."""
        for how in self._hows(test):
            yield how, ONE, NONE, "0"
            for where in self._scaled_levels(test, how):
                yield how, where, NONE, "0"
            for overlay in overlays:
                for latency in latencies:
                    if self._is_measured(test, how, overlay, latency):
                        yield how, TWO, overlay, latency

    def _hows(self, test: str) -> Sequence[str]:
        if test == "netpipe-mpich":
            return NODES, VMS
        if self.quick and test == "cg":
            return (NODES,)
        if test.endswith(MPICH):
            return NATIVE, NODES
        return (NATIVE, NODES, VMS) if test in NETPIPE else (NATIVE, NODES, *EMULATED_SIZE)

    def _scaled_levels(self, test: str, how: str) -> Sequence[str]:
        """Of the speedup on one site; with --quick of EP on nodes only."""
        if test not in KERNELS or how in EMULATED_SIZE or self.quick and (test, how) != ("ep", NODES):
            return ()
        return [where for where in self.factors()[2].measured() if where not in (ONE, TWO)]

    def _is_measured(self, test: str, how: str, overlay: str, latency: str) -> bool:
        least, few = self.least_latency, self.few_latencies()
        if self.quick:
            if how == NATIVE:
                return test == "ep" and (overlay, latency) == (NONE, least)
            return how == NODES and (overlay == NONE or test == "netpipe" and latency == least)
        if test == "netpipe-mpich" or how == VMS:
            return latency == least or test == "netpipe" and latency in few
        if how in EMULATED_SIZE or test.endswith(MPICH):
            return overlay == NONE and latency in few
        return test == "netpipe" or overlay == NONE or how == NODES and latency in few

    @property
    def least_latency(self) -> str:
        """Of the links that are measured, in ms."""
        return self.numbers(LATENCIES)[0]

    def exchanges(self, latency: str, few: bool) -> int:
        """NetPIPE's repetitions for each size: so many that a latency does not make a run last for hours."""
        usual = self.value(EXCHANGES)
        over = max(min(usual, 4), usual // (1 + int(latency)))
        return min(over, 10) if few else over
