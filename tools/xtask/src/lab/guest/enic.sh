# The kernel's own driver for Cisco's VIC, an independent one, over the model of the card: if it accepts the model,
# the model is right as far as that driver checks. A physical function and a virtual one of another kind that the
# driver accepts, too, each as a host.

export COLUMNS=500
devices=/sys/bus/pci/devices

# of_kind DEVICE: the PCI address of the first function with this device number.
of_kind() { local one; one=$(grep -lix "0x$1" $devices/*/device | head -n 1); basename "$(dirname "$one")"; }
nic() { ls $devices/"$1"/net; }
at() { local host=$1; shift; ip netns exec "$host" "$@"; }
carrier() { [ "$(at "$1" cat /sys/class/net/nic/carrier)" = 1 ]; }

# host NAME BDF ADDRESS: a namespace with the function's interface.
host() {
    local interface
    interface=$(nic "$2")
    check "$1: enic has $2" test "$(basename "$(readlink $devices/"$2"/driver)")" = enic
    ip netns add "$1"
    ip link set "$interface" netns "$1" name nic
    ip -n "$1" link set lo up
    ip -n "$1" addr add "$3"/24 dev nic
    check "$1: it is up" ip -n "$1" link set nic up
    check "$1: it has a link" within 20 carrier "$1"
}

pf=$(of_kind 0043)
vf=$(of_kind 0071)
check "the functions are there" test -n "$pf" -a -n "$vf"
dmesg | grep -i enic
host h0 "$pf" 10.90.0.1
host h1 "$vf" 10.90.0.2
says "the link's speed is the card's" "$(at h0 ethtool nic)" 'Speed: 40000Mb/s'
says "its driver" "$(at h0 ethtool -i nic)" 'driver: enic'

for size in 56 1400 8900; do
    [ $size = 8900 ] && { ip -n h0 link set nic mtu 9000; ip -n h1 link set nic mtu 9000; within 20 carrier h0; within 20 carrier h1; }
    said=$(at h0 ping -c 20 -i 0.2 -s $size 10.90.0.2 2>&1)
    says "ping of $size bytes: none is lost" "$said" '20 packets received, 0% packet loss'
done

at h1 iperf3 -s -D > /dev/null
sleep 1
said=$(at h0 timeout 60 iperf3 -c 10.90.0.2 -t 8 2>&1)
echo "$said"
says "TCP there" "$said" '[1-9][0-9.]* [MG]bits/sec.*receiver'
said=$(at h0 timeout 60 iperf3 -c 10.90.0.2 -t 8 -R -P 4 2>&1)
echo "$said" | tail -n 4
says "TCP back, four at a time" "$said" 'SUM.* [1-9][0-9.]* [MG]bits/sec.*receiver'
said=$(at h0 timeout 60 iperf3 -c 10.90.0.2 -u -b 20M -l 1400 -t 5 2>&1)
echo "$said" | tail -n 4
says "UDP: it comes" "$said" '[1-9][0-9.]* Mbits/sec.*receiver'

said=$(at h0 ethtool -S nic)
for count in rx_frames_ok tx_frames_ok; do
    says "the card counts $count" "$said" "$count: [1-9][0-9]{3,}"
done
for count in rx_errors tx_errors rx_crc_errors rx_rss_errors; do
    says "none: $count" "$said
     $count: 0" "^ *$count: 0$"
done

# Down and up, unbound and bound again: nothing is left behind.
for round in 1 2 3; do
    ip -n h1 link set nic down
    ip -n h1 link set nic up
    within 20 carrier h1
done
says "after three restarts: ping" "$(at h0 ping -c 5 10.90.0.2 2>&1)" '5 packets received, 0% packet loss'
check "unbound" bash -c "echo $vf > $devices/$vf/driver/unbind"
check "bound again" bash -c "echo $vf > /sys/bus/pci/drivers/enic/bind"
ip netns del h1
host h1 "$vf" 10.90.0.2
says "bound again: ping" "$(at h0 ping -c 5 10.90.0.2 2>&1)" '5 packets received, 0% packet loss'
if dmesg | grep -E 'enic.*([Ee]rror|[Ff]ail|[Tt]imed out|[Hh]ang|[Bb]usy|[Uu]nable)|DMAR: .*(fault|Request device)|BUG:|WARNING:'; then
    failed "the kernel has nothing to complain of" "see the lines above"
else
    ok "the kernel has nothing to complain of"
fi
finish
