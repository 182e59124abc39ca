"""Recorded output of the programs of Slurm 22.05.8 (Debian 12): of three nodes with two CPUs, of which h1 ran."""

_IDLE = (
    "NodeName=h1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=45.33 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=(null) NodeAddr=10.9.9.1 NodeHostName=localhost Version=22.05.8 OS=Linux 6.18 #1 SMP "
    "PREEMPT_DYNAMIC @0  RealMemory=1000 AllocMem=0 FreeMem=17347 Sockets=2 Boards=1 State=IDLE ThreadsPerCore=1 "
    "TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=batch  BootTime=2026-11-26T20:04:07 "
    "SlurmdStartTime=2026-11-27T06:28:09 LastBusyTime=2026-11-27T06:28:09 CfgTRES=cpu=2,mem=1000M,billing=2 AllocTRES= "
    "CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"
)
_UNKNOWN = (
    "NodeName=h2 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=N/A AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=(null) NodeAddr=10.9.9.1 NodeHostName=localhost  RealMemory=1000 AllocMem=0 "
    "FreeMem=N/A Sockets=2 Boards=1 State=UNKNOWN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=batch  BootTime=None SlurmdStartTime=None LastBusyTime=Unknown CfgTRES=cpu=2,mem=1000M,billing=2 "
    "AllocTRES= CapWatts=n/a "
    "CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"
)
IDLE = _IDLE
UNKNOWN = _UNKNOWN
ALLOCATED = _IDLE.replace("State=IDLE", "State=ALLOCATED").replace("CPUAlloc=0", "CPUAlloc=2")
DRAINING = ALLOCATED.replace("ALLOCATED", "ALLOCATED+DRAIN") + " Reason=disk is bad [root@2026-11-27T06:29:06]"
DOWN = _UNKNOWN.replace("UNKNOWN", "DOWN") + " Reason=gone | away [root@2026-11-27T06:28:13]"
"""scontrol --oneliner show node; the reasons are an administrator's."""

PENDING = "1|PENDING|10:00||None|wherry:abcdef\n2|PENDING|10:00||Priority|wherry:abcdef\n"
RUNNING = "1|RUNNING|9:58|h1|None|wherry:abcdef\n"
ENDING = "1|COMPLETING|9:58|h1|None|wherry:abcdef\n"
BLOCKED = (
    "2|PENDING|10:00||Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    "|wherry:abcdef\n"
)
"""squeue --noheader --format=JOB_FORMAT."""

NO_JOB = "slurm_load_jobs error: Invalid job id specified\n"
NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
NO_PARTITION = (
    "sbatch: error: invalid partition specified: nix\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
)
"""Errors of squeue and sbatch, which end with 1."""
