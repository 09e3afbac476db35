# Our own driver for a VIC's usNIC functions, the same program as on the host, over the guest's vfio-pci and its
# IOMMU: the model of the card is a PCI device here.

export COLUMNS=500 DOORBELL_WAIT=sleep DOORBELL_PATIENCE=60s DOORBELL_JOB_TIMEOUT=60s DOORBELL_DEADLINE=90s
devices=/sys/bus/pci/devices

of_kind() { grep -lix "0x$1" $devices/*/device | while read -r one; do basename "$(dirname "$one")"; done; }
bind() {
    echo vfio-pci > $devices/"$1"/driver_override
    [ -e $devices/"$1"/driver ] && echo "$1" > $devices/"$1"/driver/unbind
    echo "$1" > /sys/bus/pci/drivers_probe
}

pf=$(of_kind 0043)
read -r v0 v1 <<< "$(of_kind 00cf | tr '\n' ' ')"
check "the functions are there" test -n "$pf" -a -n "$v0" -a -n "$v1"
said=$(doorbell doctor usnic:"$v0" 2>&1)
says "doctor: nobody has bound it" "$said" '^  broken +driver '
for one in "$pf" "$v0" "$v1"; do bind "$one"; done

doorbell agent usnic --pf "$pf" > agent.log 2>&1 &
agent=$!
check "the agent has the physical function" within 20 grep -q '^agent of' agent.log
cat agent.log
kill $agent
if wait $agent; then ok "the agent ends"; else failed "the agent ends" "exit $?: $(tail -n 2 agent.log)"; fi
# QEMU shows the functions as unrelated devices, so an agent could not find the one of a request: the model lets
# each install its filters itself.
export DOORBELL_USNIC_ADDRESS="$v0=10.86.0.1/16 $v1=10.86.0.2/16" DOORBELL_USNIC_CONTROL=direct
said=$(doorbell doctor usnic:"$v0" 2>&1)
echo "$said"
says "doctor: usable" "$said" "^usnic:$v0: (usable|nothing broken was found)"
says "doctor: through the kernel's VFIO" "$said" '^  ok +answers +.*1137:00cf'
says "doctor: an interrupt came" "$said" '^  ok +interrupt '

serve() { serving "$v1" doorbell pingpong --serve --once --rail usnic:"$v1"; }
serve
said=$(timeout 140 doorbell pingpong --connect 127.0.0.1 --rail usnic:"$v0" --verify --sizes 8,64,1400,16Ki,100000 --samples 100 --no-reference 2>&1)
status=$?
echo "$said" | tail -n 12
if [ $status = 0 ]; then ok "pingpong: done"; else failed "pingpong: done" "exit $status: $(tail -n 3 <<< "$said")"; fi
says "pingpong: over the function" "$said" "^rail  *usnic:$v0"
says "pingpong: every message came once, whole and in order" "$said" ' 0 lost, 0 duplicated, 0 misordered, 0 corrupt'
served pingpong

# A killed process leaves functions that the next one can use.
serve
doorbell pingpong --connect 127.0.0.1 --rail usnic:"$v0" --sizes 64 --seconds 60 --no-reference > client.log 2>&1 &
client=$!
sleep 4
kill -KILL $client $server
wait $client $server 2> /dev/null
serve
said=$(timeout 140 doorbell pingpong --connect 127.0.0.1 --rail usnic:"$v0" --verify --sizes 64 --samples 50 --no-reference 2>&1)
status=$?
if [ $status = 0 ]; then ok "killed: the next one"; else failed "killed: the next one" "exit $status: $(tail -n 3 <<< "$said")"; fi
served "killed: the next one"
if dmesg | grep -E 'DMAR: .*(fault|Request device)|BUG:|WARNING:'; then
    failed "the kernel has nothing to complain of" "see the lines above"
else
    ok "the kernel has nothing to complain of"
fi
finish
