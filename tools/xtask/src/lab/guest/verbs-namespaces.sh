# Two machines on three wires, each a network namespace of this guest, with soft-RoCE devices of its own: Linux 7.3 and later.

at() { local host=$1; shift; ip netns exec $host "$@"; }
in_shell_of_b() { eval "$*"; }
# By its path: busybox has an `ip` that its `timeout` prefers.
on_a='/bin/ip netns exec a'
on_b='/bin/ip netns exec b'
nic() { if [ $1 = a ]; then echo eth$2; else echo eth$(($2 + 3)); fi; }
device() { if [ $1 = a ]; then echo rxe$2; else echo rxe$(($2 + 2)); fi; }

hosts() {
    local host wire
    for host in a b; do
        ip netns add $host
        ip -n $host link set lo up
        for wire in 0 1 2; do ip link set $(nic $host $wire) netns $host; done
    done
    doorbell key key > /dev/null
}
parted() { :; }
