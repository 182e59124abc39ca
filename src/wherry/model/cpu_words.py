"""Words of /proc/cpuinfo for the kernel's work or the processor's behaviour, not for instructions that a program can
use.

Two kernels tell different ones of the same processor (arch/x86/include/asm/cpufeatures.h, the words that Linux defines,
and those of mitigations, virtualisation, clocks and counters).
"""

from __future__ import annotations

OF_THE_KERNEL = frozenset(
    # clocks, power and counters
    "constant_tsc nonstop_tsc tsc_reliable tsc_known_freq art always_running_timer aperfmperf arat ida epb pln "
    "pts dtherm hwp hwp_notify hwp_act_window hwp_epp hwp_pkg_req hw_pstate cpb proc_feedback acc_power cppc est "
    "tm tm2 acpi hfi arch_perfmon pebs bts ds_cpl dts dtes64 perfctr_core perfctr_nb perfctr_llc perfmon_v2 "
    "amd_lbr_v2 amd_lbr_pmc_freeze arch_lbr intel_pt bpext ibs pdcm cmt cqm cqm_llc cqm_occup_llc cqm_mbm_total "
    "cqm_mbm_local rdt_a cat_l2 cat_l3 cdp_l2 cdp_l3 mba smba bmec per_thread_mba "
    # findings and work of the kernel
    "rep_good nopl xtopology cpuid extd_apicid amd_dcm up cmp_legacy topoext nodeid_msr monitor apic x2apic avic "
    "x2avic tsc_deadline_timer tsc_adjust pge pse pse36 mtrr pat mca mce overflow_recov succor smca vme de "
    "syscall_32 pcid invpcid invpcid_single smep smap umip nx pdpe1gb mbm bus_lock_detect split_lock_detect "
    "hypervisor dca intel_ppin amd_ppin ht pbe ss sdbg xtpr cid skinit wdt osvw tce "
    # mitigations
    "pti kaiser ibrs ibpb stibp ssbd virt_ssbd ibrs_enhanced amd_ssbd amd_stibp amd_ibpb spec_ctrl intel_stibp "
    "md_clear flush_l1d arch_capabilities retpoline retpoline_amd rsb_ctxsw rsb_vmexit ssb_no btc_no ibpb_brtype "
    "sbpb srso_alias bhi_ctrl autoibrs core_capabilities fsrs_fix tsx_force_abort rtm_always_abort srbds_ctrl "
    # virtualisation
    "vmx svm smx tpr_shadow vnmi flexpriority ept ept_ad vpid vmmcall npt lbrv svm_lock nrip_save tsc_scale "
    "vmcb_clean flushbyasid decodeassists pausefilter pfthreshold v_vmsave_vmload vgif v_spec_ctrl sev sev_es "
    "sev_snp sme debug_swap tdx_guest".split()
)
"""Names as in /proc/cpuinfo."""
