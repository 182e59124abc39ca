"""Tables and figures of `multi-site`, with the paper's values beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wherry.lab.report import figures
from wherry.lab.report.figures import size_text
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median, ratio
from wherry.lab.study import analysis, gateways
from wherry.lab.study.experiment import Page
from wherry.lab.study.levels import Combination
from wherry.lab.study.papers import reference_values
from wherry.lab.study.papers.multi_site_design import (
    EMULATED_SIZE,
    HOST_CPUS,
    KERNELS,
    MPICH,
    NATIVE,
    NATIVE_SMALL,
    NETPIPE,
    NODES,
    NONE,
    NPB_VMS,
    ONE,
    SCALING_BASE,
    TWO,
    VM_CLASS,
    VM_CPUS,
    VMS,
    MultiSiteDesign,
    combination_of,
    kernel_of,
)
from wherry.lab.study.papers.reference_values import PaperComparison
from wherry.lab.study.results import Results

_PAPER_GAIN = {"ep": "gains", "lu": "gains", "cg": "less likely to gain", "bt": "a figure without numbers"}
"""The paper's statement about doubling the nodes with a second site."""
_LATENCY = "latency_mean"


def page(design: MultiSiteDesign, results: Results) -> Page:
    """The study's page."""
    made = Page()
    made.tables += [
        paper_comparison(design, results),
        _netpipe_table(design, results),
        npb_table(design, results),
        *(table for table in _further_tables(design, results) if table.rows),
    ]
    curves = analysis.curves_by_size(
        results,
        {
            _label(design, combination): combination
            for combination in design.combinations()
            if combination["test"] == "netpipe"
            and combination["how"] == NODES
            and (combination["where"] == ONE or combination["latency"] == design.least_latency)
        },
        _LATENCY,
    )
    drawn = figures.curves(curves, "Mbit/s (10^6)", log_y=True, scale=analysis.bandwidth)
    made.figures.append(("NetPIPE between container nodes: bandwidth by the network between the sites.", drawn))
    bars = (
        (
            _gain_groups(design, results),
            f"Gain of {design.sites_text('ep')} over one, by kernel and latency of the link, on container nodes "
            "without a VPN.",
            "times as fast",
        ),
        (
            _scaling_groups(design, results),
            f"One site, relative to {SCALING_BASE} ranks, natively and on container nodes.",
            "times as fast",
        ),
        (
            _gateway_groups(design, results),
            "The busiest gateway of the VPN while NetPIPE sends messages up to this size, at "
            f"{design.least_latency} ms; 1 is a whole CPU.",
            "CPUs",
        ),
    )
    made.figures += [(caption, figures.bars(groups, label)) for groups, caption, label in bars if groups]
    made.remarks += [
        f"Gain is the time at one site over that at {design.sites_text('ep')} with as many ranks at each, or a few "
        "more, both of the same kind; 1 is no gain, the bound is the ratio of the ranks. `throttled` is the time that "
        "a rank waited for its host's CPU quota, on average, as a share of the whole run, its launch included; a rank "
        "that waits for a message polls for up to a millisecond before it sleeps, natively as on nodes "
        "(libwherry-wait.so), and so may use up its quota.",
        "A gateway's CPU time is that of its process, by class of message sizes; WireGuard in the kernel has none, and "
        "counts, as bridging and forwarding at each site do, as the kernel's work: soft interrupts of the whole "
        "machine as its clock's ticks saw them.",
    ]
    return made


def _label(design: MultiSiteDesign, combination: Combination) -> str:
    """Text for the ranks' locations and the link between them."""
    _, how, where, overlay, latency = design.factors()
    at = design.sites_text(combination["test"])
    if combination["where"] != TWO:
        return f"{how.label(combination['how'])}, {where.label(combination['where'])}"
    between = "" if combination["overlay"] == NONE else f", {overlay.label(combination['overlay'])}"
    return f"{how.label(combination['how'])}, {at}{between}, {latency.label(combination['latency'])}"


def _test(design: MultiSiteDesign, combination: Combination) -> str:
    """Text for the program; emulated machines have a class of their own."""
    text, kernel = design.factors()[0].label(combination["test"]), kernel_of(combination["test"])
    if combination["how"] in EMULATED_SIZE:
        return text.replace(f"class {design.npb_class(kernel)}", f"class {design.npb_class(kernel, NPB_VMS)}")
    return text


def _netpipe_table(design: MultiSiteDesign, results: Results) -> Table:
    rows = []
    for combination in design.combinations():
        data = [results.values(combination, name) for name in ("latency", "bandwidth")]
        if combination["test"] in NETPIPE and all(data):
            times = median([1e3 * y for y in data[0]]).text()
            test = design.factors()[0].label(combination["test"])
            rows.append((test, _label(design, combination), times, median(data[1]).text()))
    return Table("NetPIPE", ("test", "ranks", "least latency, ms", "most bandwidth, Mbit/s (10^6)"), rows)


def npb_table(design: MultiSiteDesign, results: Results) -> Table:
    """NPB's times, and the gain of several sites over one."""
    rows = []
    for combination in design.combinations():
        seconds = results.values(combination, "seconds")
        if combination["test"] in NETPIPE or not seconds:
            continue
        walls = results.values(combination, "wall")  # includes the launch, in which ranks are throttled too
        waits = [wait / wall for wait, wall in zip(results.values(combination, "throttled"), walls, strict=False)]
        gain, tested = _gain(results, combination)
        share = f"{100 * min(1.0, median(waits).value):.0f} %" if waits else "-"
        rows.append(
            (
                _test(design, combination),
                _label(design, combination),
                f"{design.ranks(combination)}",
                median(seconds).text(),
                gain.text() if gain else "",
                tested,
                share,
            )
        )
    head = ("test", "ranks are", "ranks", "seconds", "gain", "gain's test", "throttled")
    return Table("NPB on limited hosts", head, rows)


def _further_tables(design: MultiSiteDesign, results: Results) -> Iterator[Table]:
    yield scaling_table(design, results)
    yield mpich_table(design, results)
    yield gateway_table(design, results)


def scaling_table(design: MultiSiteDesign, results: Results) -> Table:
    """One site, relative to four ranks: the paper's figure."""
    rows = []
    for test, how in ((test, how) for test in KERNELS for how in (NATIVE, NODES)):
        for combination, speedup, tested in _speedups(design, results, test, how):
            ranks = design.ranks(combination)
            base = design.ranks(combination_of(test, how, design.scaled(SCALING_BASE)))
            bound = f"{ranks / base:.3g}"
            rows.append(
                (
                    design.factors()[0].label(test),
                    design.factors()[1].label(how),
                    f"{ranks}",
                    speedup.text(),
                    bound,
                    tested,
                )
            )
    head = ("test", "ranks are", "ranks", "times as fast as with four", "at best", "test's result")
    return Table("Scaling on one site", head, rows)


def _speedups(
    design: MultiSiteDesign, results: Results, test: str, how: str
) -> Iterator[tuple[Combination, Estimate, str]]:
    """Each size of one site with its speedup over four ranks, and the result of its significance test."""
    base = results.values(combination_of(test, how, design.scaled(SCALING_BASE)), "seconds")
    for ranks in design.scales():
        combination = combination_of(test, how, design.scaled(ranks))
        seconds = results.values(combination, "seconds")
        if ranks != SCALING_BASE and base and seconds:
            yield combination, ratio(base, seconds), analysis.significance_text(base, seconds)


def mpich_table(design: MultiSiteDesign, results: Results) -> Table:
    """The same program by both MPIs."""
    rows = []
    for combination in design.combinations():
        test = combination["test"]
        if not test.endswith(MPICH) or test in NETPIPE:
            continue
        levels = {**dict(combination.levels), "test": kernel_of(test)}
        openmpi, mpich = (results.values(one, "seconds") for one in (Combination.of(**levels), combination))
        if openmpi and mpich:
            rows.append(
                (
                    design.factors()[0].label(kernel_of(test)),
                    _label(design, combination),
                    median(openmpi).text(),
                    median(mpich).text(),
                    ratio(mpich, openmpi).text(),
                    analysis.significance_text(mpich, openmpi),
                )
            )
    head = ("test", "ranks are", "Open MPI, s", "MPICH, s", "MPICH : Open MPI", "test's result")
    return Table("MPICH beside Open MPI", head, rows)


def gateway_table(design: MultiSiteDesign, results: Results) -> Table:
    """CPU time of the parts that join the sites, while NetPIPE runs."""
    rows = []
    for combination in design.combinations():
        if combination["test"] not in NETPIPE or not (kernel := results.values(combination, gateways.SOFTIRQ)):
            continue
        cells = [results.values(combination, gateways.GATEWAY, float(largest)) for largest in gateways.BINS]
        link = results.values(combination, gateways.LINK)
        rows.append(
            (
                design.factors()[0].label(combination["test"]),
                _label(design, combination),
                *(_median_text(cell) for cell in cells),
                _median_text(link),
                _median_text(kernel),
            )
        )
    sizes = [f"gateway, to {size_text(largest)}" for largest in gateways.BINS]
    head = ("test", "ranks", *sizes, "link's emulator", "the kernel's work")
    return Table("Gateways, link and kernel between the sites, in CPUs while NetPIPE sends", head, rows)


def _median_text(data: Sequence[float]) -> str:
    return median(data).text() if data else "-"


def _gain(results: Results, combination: Combination) -> tuple[Estimate | None, str]:
    """Speedup over one site, and the result of its significance test."""
    if combination["where"] != TWO:
        return None, ""
    one = results.values(combination_of(combination["test"], combination["how"]), "seconds")
    two = results.values(combination, "seconds")
    return (ratio(one, two), analysis.significance_text(one, two)) if one and two else (None, "")


def _gain_groups(design: MultiSiteDesign, results: Results) -> dict[str, dict[str, list[float]]]:
    groups: dict[str, dict[str, list[float]]] = {}
    for kernel in KERNELS:
        one = results.values(combination_of(kernel, NODES), "seconds")
        for level in design.factors()[4].measured():
            two = results.values(combination_of(kernel, NODES, TWO, NONE, level), "seconds")
            if one and two:
                baseline = median(one).value
                groups.setdefault(kernel.upper(), {})[f"{level} ms"] = [baseline / seconds for seconds in two]
    return groups


def _scaling_groups(design: MultiSiteDesign, results: Results) -> dict[str, dict[str, list[float]]]:
    groups: dict[str, dict[str, list[float]]] = {}
    for test, how in ((test, how) for test in KERNELS for how in (NATIVE, NODES)):
        base = results.values(combination_of(test, how, design.scaled(SCALING_BASE)), "seconds")
        for combination, _, _ in _speedups(design, results, test, how):
            name = f"{design.factors()[2].label(combination['where']).removeprefix('one site, ')}, {how}"
            data = [median(base).value / seconds for seconds in results.values(combination, "seconds")]
            groups.setdefault(test.upper(), {})[name] = data
    return groups


def _gateway_groups(design: MultiSiteDesign, results: Results) -> dict[str, dict[str, list[float]]]:
    groups: dict[str, dict[str, list[float]]] = {}
    for overlay in design.factors()[3].measured():
        combination = combination_of("netpipe", NODES, TWO, overlay, design.least_latency)
        for largest in gateways.BINS:
            if data := results.values(combination, gateways.GATEWAY, float(largest)):
                groups.setdefault(size_text(largest), {})[design.factors()[3].label(overlay)] = data
    return groups


def paper_comparison(design: MultiSiteDesign, results: Results) -> Table:
    """The paper's values with ours."""
    rows = [*_netpipe_comparison(design, results), _gateway_comparison(design, results)]
    for kernel in KERNELS:
        rows += _kernel_comparison(design, results, kernel)
    return reference_values.table(rows, reference_values.WIDE)


def _netpipe_comparison(design: MultiSiteDesign, results: Results) -> Iterator[PaperComparison]:
    native, nodes = (combination_of("netpipe", how) for how in (NATIVE, NODES))
    two_sites = combination_of("netpipe", NODES, TWO, NONE, design.least_latency)
    vm = "The direction; containers share the host's kernel, the paper's domains went through another one."
    vpn = "The direction; gateways were machines of their own there and share the CPUs here."
    kvm = "The direction; the ratio only with KVM, as without it a VM's processor is emulated."
    guests = combination_of("netpipe", VMS)
    open_release = "The direction; SoftEther is the open release of PacketiX, and gateways share the CPUs here."
    comparisons = (
        ("latency", "one site: nodes over native", nodes, native, "0.08 / 0.04 = 2.0", vm),
        ("bandwidth", "one site: nodes : native", nodes, native, "430 / 896 = 0.48", vm),
        ("latency", "one site: VM nodes over native", guests, native, "0.08 / 0.04 = 2.0", kvm),
        ("bandwidth", "one site: VM nodes : native", guests, native, "430 / 896 = 0.48", kvm),
        ("latency", "two sites: openvpn over none", None, two_sites, "0.15 / 0.04 = 3.8", vpn),
        ("bandwidth", "two sites: openvpn : none", None, two_sites, "290 / 896 = 0.32", vpn),
        ("latency", "two sites: softether over none", None, two_sites, "PacketiX: 0.36 / 0.04 = 9", open_release),
        ("bandwidth", "two sites: softether : none", None, two_sites, "PacketiX: 170 / 896 = 0.19", open_release),
    )
    for metric, what, combination, baseline, published, comparable in comparisons:
        if combination is None:
            combination = combination_of("netpipe", NODES, TWO, what.split()[2], design.least_latency)
        ours, theirs = (results.values(one, metric) for one in (combination, baseline))
        yield reference_values.ratio(f"{metric}, {what}", published, what.partition(":")[0], ours, theirs, comparable)


def _gateway_comparison(design: MultiSiteDesign, results: Results) -> PaperComparison:
    """With the largest messages that were sent."""
    combination = combination_of("netpipe", NODES, TWO, "openvpn", design.least_latency)
    sizes = results.xs(combination, gateways.GATEWAY)
    share = median(results.values(combination, gateways.GATEWAY, sizes[-1])) if sizes else None
    return PaperComparison(
        "CPU of OpenVPN's gateways with large messages",
        "saturated",
        "two sites",
        f"{share.text()} of a CPU" if share else None,
        "Whether it is near 1. A gateway here has no CPU of its own: where ranks poll for messages on the same "
        "CPUs it gets less, and is the bottleneck all the same.",
    )


def _kernel_comparison(design: MultiSiteDesign, results: Results, kernel: str) -> Iterator[PaperComparison]:
    cost = "about 1.0" if kernel in ("ep", "lu") else "below 1.2"
    name, emulation = kernel.upper(), _emulation(design)
    for nodes, how, baseline in _virtual(design):
        ours, theirs = (results.values(combination_of(kernel, one), "seconds") for one in (how, baseline))
        what = f"{name} on one site: {nodes} over native, times"
        comparable = "The order: little for EP and LU, more for CG and BT."
        comparable = emulation if emulation and how == NPB_VMS else comparable
        yield reference_values.ratio(what, cost, "summary", ours, theirs, comparable)
    speedups = [
        f"{design.ranks(combination)} ranks {how}: {speedup.text()} ({tested})"
        for how in (NATIVE, NODES)
        for combination, speedup, tested in _speedups(design, results, kernel, how)
    ]
    comparable = "Whether and how far it scales; the paper went from 4 to 128."
    what, published = f"{name} on one site, relative to four ranks", "a figure to 128, without numbers"
    yield PaperComparison(what, published, "single site", "; ".join(speedups) or None, comparable)
    gains = {ms: _gain(results, combination_of(kernel, NODES, TWO, NONE, ms)) for ms in design.few_latencies()}
    text = "; ".join(f"{ms} ms: {gain.text()} ({tested})" for ms, (gain, tested) in gains.items() if gain)
    one, two = (design.ranks(combination_of(kernel, NODES, where)) for where in (ONE, TWO))
    comparable = f"Whether it gains at all; 64 nodes against 32 there, {two} against {one} here."
    at = design.sites_text(kernel)
    what = f"{name}: gain of {'a second site' if at == 'two sites' else at}"
    yield PaperComparison(what, _PAPER_GAIN[kernel], "two sites", text or None, comparable)
    for nodes, how, baseline in _virtual(design):
        comparable = (
            "That it is little. The hosts' own packets are larger than the nodes', and a rank's quota pays for both."
        )
        yield PaperComparison(
            f"{name} on {at}: {nodes} over native, times",
            "0 to 10 %",
            "two sites",
            _virtualization(design, results, kernel, how, baseline) or None,
            emulation if emulation and how == NPB_VMS else comparable,
        )


def _virtual(design: MultiSiteDesign) -> Iterator[tuple[str, str, str]]:
    """Name of the nodes, their level, and the level of the same ranks natively."""
    yield "nodes", NODES, NATIVE
    if not design.emulated:
        yield "VM nodes", NPB_VMS, NATIVE
        return
    yield f"emulated VM nodes, class {design.value(VM_CLASS)},", NPB_VMS, NATIVE_SMALL


def _emulation(design: MultiSiteDesign) -> str:
    """The limits of the ratio of emulated VM nodes; empty with KVM."""
    if not design.emulated:
        return ""
    have, natively = (f"{design.value(one):g}" for one in (VM_CPUS, HOST_CPUS))
    return (
        f"A direction, marked: processors are emulated and have {have} of a CPU, native ranks {natively}; the ratio "
        "only with KVM."
    )


def _virtualization(design: MultiSiteDesign, results: Results, kernel: str, how: str, baseline: str) -> str:
    """The cost of nodes on several sites, by latency of the link."""
    texts = []
    for ms in design.few_latencies():
        nodes, native = (
            results.values(combination_of(kernel, one, TWO, NONE, ms), "seconds") for one in (how, baseline)
        )
        if nodes and native:
            texts.append(f"{ms} ms: {ratio(nodes, native).text()} ({analysis.significance_text(nodes, native)})")
    return "; ".join(texts)
