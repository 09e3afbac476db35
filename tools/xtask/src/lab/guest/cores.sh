# Which cores ranks and their progress threads get, on a machine of two nodes with two whole cores each, of two
# hardware threads each: 0 and 1 are one whole core, 2 and 3, 4 and 5, 6 and 7. A NIC is at each.
#
# ISOLATED  the cores that the kernel was told to isolate, or nothing
# OFFLINE   whether a core is taken away under a job: eight emulated cores, of which four spin, may stall on a busy machine

cpu=/sys/devices/system/cpu
export COLUMNS=500
export DOORBELL_PROGRESS=dedicated

# are WHAT LINES COMMAND...: it prints these lines, in any order, and nothing else.
are() {
    local what=$1 lines=$2 said
    shift 2
    said=$("$@" 2>&1 | sort)
    if [ "$said" = "$lines" ]; then ok "$what"; else failed "$what" "$said"; fi
}

# refused WHAT PATTERN COMMAND...: status 2, and one line with the pattern.
refused() {
    local what=$1 pattern=$2 said status
    shift 2
    said=$("$@" 2>&1)
    status=$?
    if [ $status = 2 ]; then ok "$what: status 2"; else failed "$what: status 2" "exit $status: $said"; fi
    says "$what: says why" "$said" "$pattern"
}

# The cores of the threads of each rank, as the kernel has them.
bound() { doorbell run --no-prefix "$@" -- binding; }

# is_pinned NAME CORE: a thread with this name has this core alone.
is_pinned() {
    local comm
    for comm in $(grep -ls "^$1\$" /proc/[0-9]*/task/*/comm); do
        grep -qs "^Cpus_allowed_list:.$2\$" "${comm%comm}status" && return 0
    done
    return 1
}

check "the machine has nodes and hardware threads as it was told" test \
    "$(cat $cpu/cpu0/topology/thread_siblings_list /sys/devices/system/node/node1/cpulist)" = $'0-1\n4-7'
# of_mac MAC: the NIC that has it.
of_mac() { basename "$(dirname "$(grep -lx "$1" /sys/class/net/*/address)")"; }
# Those at node 0 and at node 1.
nic0=$(of_mac 52:54:00:00:00:02) nic1=$(of_mac 52:54:00:00:00:01)
check "the NICs are at their nodes" test \
    "$(cat /sys/class/net/$nic0/device/../numa_node /sys/class/net/$nic1/device/../numa_node)" = $'0\n1'
check "the NIC at node 0 is up" bash -c "ip address add 10.0.0.1/24 dev $nic0 && ip link set $nic0 up"
check "the NIC at node 1 is up" bash -c "ip address add 10.0.1.1/24 dev $nic1 && ip link set $nic1 up"
doorbell run -n 2 --cores-per-rank 2 --show-binding

if [ -n "$ISOLATED" ]; then
    says "isolated cores are named" "$(doorbell run -n 1 --show-binding)" "cores $ISOLATED are isolated"
    refused "too few without them" "cores $ISOLATED are isolated" doorbell run -n 4 --cores-per-rank 2 -- true
    are "isolated cores come first where they may be used" "rank 0: own 6, progress 4" \
        taskset -c 4-7 doorbell run --no-prefix -n 1 --cores-per-rank 2 -- binding
    finish
fi

are "two ranks: two whole cores of a node each" $'rank 0: own 0, progress 2\nrank 1: own 4, progress 6' \
    bound -n 2 --cores-per-rank 2
are "two ranks: the same unasked" $'rank 0: own 0, progress 2\nrank 1: own 4, progress 6' bound -n 2
are "four ranks: hardware threads, since there are four whole cores" \
    $'rank 0: own 0, progress 1\nrank 1: own 2, progress 3\nrank 2: own 4, progress 5\nrank 3: own 6, progress 7' \
    bound -n 4 --cores-per-rank 2
refused "five ranks" '5 ranks with 2 cores each need 10, and 4 are here' bound -n 5 --cores-per-rank 2
are "siblings, by the setting" $'rank 0: own 0, progress 1\nrank 1: own 2, progress 3' \
    env DOORBELL_PROGRESS_CORE=sibling doorbell run --no-prefix -n 2 -- binding
are "cores of a list" $'rank 0: own 0-1,4-5, progress 7\nrank 1: own 0-1,4-5, progress 3' \
    env DOORBELL_PROGRESS_CORE=7,3 doorbell run --no-prefix --bind none -n 2 -- binding
are "the node of the NIC first" "rank 0: own 4, progress 6" bound -n 1 --cores-per-rank 2 --rail udp:$nic1 --rail shm
# The rails of each rank, of a set of both NICs.
taken() { "$@" --rail shm --rail 'udp:eth*' -- sh -c 'echo "rank $DOORBELL_RANK: $DOORBELL_RAILS"'; }
doorbell run -n 2 --cores-per-rank 2 --rail shm --rail 'udp:eth*' --show-binding
are "a set: each rank has the NIC of its node" "rank 0: shm,udp:$nic0"$'\n'"rank 1: shm,udp:$nic1" \
    taken doorbell run --no-prefix -n 2 --cores-per-rank 2
are "a set: one rank has the NIC of its node" "rank 0: shm,udp:$nic1" taken taskset -c 4-7 doorbell run --no-prefix -n 1
are "a set: of two ranks of a node the first one has its NIC" "rank 0: shm,udp:$nic1"$'\n'"rank 1: shm,udp:$nic0" \
    taken taskset -c 4-7 doorbell run --no-prefix -n 2 --cores-per-rank 2
are "an affinity mask" "rank 0: own 5, progress 7" \
    taskset -c 5,7 doorbell run --no-prefix -n 1 --cores-per-rank 2 -- binding
are "a rank without a launcher, under a mask: divided" "rank 0: own 2, progress 6" \
    taskset -c 2,6 binding
are "a rank without a launcher or a mask: left to the scheduler" "rank 0: own 0-7, progress 0-7" binding

mkdir -p /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/box
echo 2-5 > /sys/fs/cgroup/box/cpuset.cpus
are "a cpuset" "rank 0: own 2, progress 4" \
    bash -c 'echo $$ > /sys/fs/cgroup/box/cgroup.procs; exec doorbell run --no-prefix -n 1 --cores-per-rank 2 -- binding'

[ -n "$OFFLINE" ] || finish
doorbell run -n 2 --cores-per-rank 2 -- doorbell pingpong --mode dedicated --rail shm --sizes 8 --seconds 12 > offline.log 2>&1 &
job=$!
check "offline: the progress thread of rank 0 is on core 2" within 30 is_pinned doorbell-0 2
check "offline: core 2 is taken away" bash -c "echo 0 > $cpu/cpu2/online"
check "offline: the thread says so" within 20 grep -q 'rank 0 has no core of its own.*that core went offline' offline.log
wait $job
status=$?
if [ $status = 0 ]; then ok "offline: the job ends well"; else failed "offline: the job ends well" "exit $status: $(tail -n 5 offline.log)"; fi
are "offline: what is left" $'rank 0: own 0, progress 3\nrank 1: own 4, progress 6' bound -n 2 --cores-per-rank 2
echo 1 > $cpu/cpu2/online
finish
