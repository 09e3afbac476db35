# One host: both ends are in this guest, and reach each other inside a device.

at() { shift; "$@"; }
in_shell_of_b() { eval "$*"; }
# Each end has a processor of its own, as the hosts of a wire have.
on_a='taskset 1'
on_b='taskset 2'
control=127.0.0.1
device() { echo rxe0; }
hosts() { doorbell key key > /dev/null; }
wired() {
    ip addr add 10.90.0.1/24 dev eth0
    ip link set eth0 up
    ip link set eth1 up
    check "the interface is up" within 10 has_flag_up eth0
    check "a device" rdma link add rxe0 type rxe netdev eth0
}
parted() { :; }
