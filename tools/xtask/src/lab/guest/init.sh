#!/bin/dash
# The first process of a guest: makes it a system in which /lab/run.sh can work, runs that, and ends the machine with its status.
export PATH=/lab/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/busybox HOME=/root TERM=dumb LC_ALL=C
busybox=$(command -v busybox)
$busybox mount -t devtmpfs dev /dev
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t tmpfs tmpfs /run
$busybox mount -t tmpfs tmpfs /tmp
# Debian's own programs come first: busybox has an `ip` that knows less.
$busybox mkdir -p /run/busybox /run/netns /dev/shm /dev/pts
$busybox --install -s /run/busybox
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
[ -e /var/run ] || { mkdir -p /var; ln -s /run /var/run; }
echo root:x:0:0:root:/root:/bin/bash > /etc/passwd
echo root:x:0: > /etc/group
ulimit -l unlimited
ulimit -n 65536
ip link set lo up
for module in /lab/modules/*.ko; do
    [ -e "$module" ] && { insmod "$module" || echo "LAB failed: $module is loaded -- see the lines above"; }
done
echo "LAB began: Linux $(uname -r), $(cut -d' ' -f1 /proc/uptime) s after its start"
cd /tmp
bash /lab/run.sh
rc=$?
echo "LAB ended: status $rc, $(cut -d' ' -f1 /proc/uptime) s after its start"
# isa-debug-exit: QEMU ends with twice this and one. The offset tells it from QEMU's own statuses.
[ "$rc" -gt 63 ] && rc=63
printf "\\$(printf %03o $((rc + 64)))" | dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
poweroff -f
