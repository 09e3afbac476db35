# A write of an attempt that was given up is still in the network when the message has long arrived another way.
#
# Its sender was told that it failed, or may have. Its receiver has handed the memory back to its owner, who uses it for
# something else. BFO has nothing against such a write but waiting. Here the key is revoked before the receiver says that it
# is ready for the restart: the write comes, and is refused.
#
# The receiver's end of rail 0 is up all the time: it is not the rail that saves the memory, by withdrawing what it had
# exposed to a peer that is down.

set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV can-put 1
deliver rail 0 1->0 PUT restart 0
hold rail 0 0->1 WRITE as late
fail rail 0 0->1 late as indeterminate

deliver rail 0 0->1 NOTIFY restart 1
deliver rail 0 1->0 RESTART-ACK restart 1
deliver rail 0 0->1 RNDV restart 2 can-put 1
deliver rail 0 1->0 PUT restart 2
deliver rail 0 0->1 WRITE
settle
expect received m whole
expect sent m ok

reuse m
release late
expect m untouched
expect nothing left
