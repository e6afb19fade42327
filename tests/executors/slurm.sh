#!/bin/bash
# A small real Slurm on this machine: one controller and two nodes, n1 and n2,
# as the current user and on the loopback address only. Everything it writes
# is under DIR, whose path must have no spaces.
#
#   slurm.sh start DIR         start it and print the line to eval
#   slurm.sh node DIR NODE     start a node again after it was killed
#   slurm.sh controller DIR    start the controller again after it was killed
#   slurm.sh stop DIR          end every job and daemon of DIR
#
# The pids are in DIR/slurmctld.pid, DIR/n1.pid and DIR/n2.pid. The daemons use
# the ports from SLURM_TEST_PORT on (17000 when unset). There is no
# authentication: anyone on this machine can submit jobs as the current user.
set -eu

die() {
    echo "slurm.sh: $*" >&2
    exit 1
}

command -v slurmctld >/dev/null || PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

write_conf() {
    local host user port
    host=$(hostname -s)
    user=$(id -un)
    port=${SLURM_TEST_PORT:-17000}
    cat >"$conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/none
CredType=cred/none
# A requeued job waits as long as this before it starts again.
AuthInfo=cred_expire=5
# Listen on the addresses above only.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny

StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdSpoolDir=$dir/%n
SlurmdPidFile=$dir/%n.pid
SlurmdLogFile=$dir/%n.log
MailProg=/bin/true

# Nothing that needs cgroups. A job above its memory is killed by polling.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none

SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
JobRequeue=1
KillWait=10
SlurmdTimeout=20
ReturnToService=2

# The machine may have less than the two nodes offer together. The GPUs are
# plain files.
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=2 RealMemory=8000 Gres=gpu:2
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=2 RealMemory=8000 Gres=gpu:2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
END
    touch "$dir/gpu0" "$dir/gpu1"
    cat >"$dir/gres.conf" <<END
AutoDetect=off
NodeName=n[1-2] Name=gpu File=$dir/gpu[0-1]
END
}

# The mark tells the daemons of DIR from all other processes. Jobs do not have
# it: their environment comes from sbatch.
daemon() {
    SLURM_CONF=$conf SLURM_TEST_DIR=$dir "$@" </dev/null >>"$dir/start.log" 2>&1 ||
        die "$1 did not start, see $dir"
}

controller() { daemon slurmctld; }
node() { daemon slurmd -N "$1"; }

# The live processes of DIR: the daemons, the jobs that they started, and the
# parent of each job. That one has overwritten its environment, but its working
# directory is DIR.
processes() {
    local file
    {
        grep -lzxF "SLURM_TEST_DIR=$dir" /proc/[0-9]*/environ
        grep -lz '^SLURMD_NODENAME=' /dev/null \
            $(grep -lzxF "SLURM_CONF=$conf" /proc/[0-9]*/environ)
        for file in $(grep -lz '^slurmstepd: ' /proc/[0-9]*/cmdline); do
            [ "$(readlink "${file%/*}/cwd")" != "$dir" ] || echo "$file"
        done
    } 2>/dev/null | tr -dc '0-9\n'
}

# Waits until a command succeeds: until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

idle() { [ "$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -cx idle)" = 2 ]; }
no_jobs() { [ -z "$(timeout 2 squeue --noheader 2>/dev/null)" ]; }
none_left() { [ -z "$(processes)" ]; }

stop() {
    if [ -e "$conf" ] && ! none_left; then
        timeout 5 scancel --me 2>/dev/null || true
        until_true 5 no_jobs || true
        kill $(processes) 2>/dev/null || true
        until_true 5 none_left || kill -9 $(processes) 2>/dev/null || true
        until_true 5 none_left || die "still running: $(processes)"
    fi
}

[ $# -ge 2 ] || die "usage: slurm.sh start|stop|controller DIR, or slurm.sh node DIR NODE"
for program in slurmctld slurmd sinfo; do
    command -v "$program" >/dev/null ||
        die "no $program: apt-get install slurmctld slurmd slurm-client"
done

case $1 in
start) mkdir -p "$2" ;;
stop) [ -d "$2" ] || exit 0 ;;
esac
dir=$(cd "$2" && pwd -P)
conf=$dir/slurm.conf
export SLURM_CONF=$conf

case $1 in
start)
    none_left || die "already running in $dir"
    mkdir -p "$dir/state" "$dir/n1" "$dir/n2"
    write_conf
    controller
    node n1
    node n2
    until_true 30 idle || {
        stop
        die "the nodes are not idle after 30 s, see the logs in $dir"
    }
    echo "export SLURM_CONF='$conf' PATH='$PATH'"
    ;;
stop) stop ;;
controller) controller ;;
node) node "${3:?which node}" ;;
*) die "unknown command $1" ;;
esac
