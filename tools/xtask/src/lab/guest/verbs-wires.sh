# The addresses of three wires between two hosts, and the devices on them.

declare -A last=([a]=1 [b]=2)

# up HOST WIRE: its interface has its address and is up.
up() {
    local card
    card=$(nic $1 $2)
    at $1 ip addr add 10.9$2.0.${last[$1]}/24 dev $card
    at $1 ip link set $card up
}
# is_up HOST WIRE: its interface carries packets, and all of its addresses can be used.
is_up() {
    local shown
    shown=$(at $1 ip addr show dev $(nic $1 $2))
    grep -q '[<,]LOWER_UP[,>]' <<< "$shown" && ! grep -q ' tentative' <<< "$shown"
}
# made HOST WIRE: a device on the wire.
made() { check "$1 has a device on wire $2" at $1 rdma link add $(device $1 $2) type rxe netdev $(nic $1 $2); }

control=10.92.0.2
# Three wires with addresses, and a device on each of the first two.
wired() {
    local host wire
    for host in a b; do
        for wire in 0 1 2; do up $host $wire; done
        for wire in 0 1; do made $host $wire; done
    done
    # Whatever part comes first: rails are opened by the names of the interfaces.
    for host in a b; do
        for wire in 0 1 2; do check "$host: wire $wire is up" within 20 is_up $host $wire; done
    done
    check "the third wire" within 20 at a ping -c 1 -W 1 10.92.0.2
    check "the first wire" within 20 at a ping -c 1 -W 1 10.90.0.2
    check "the second wire" within 20 at a ping -c 1 -W 1 10.91.0.2
}
