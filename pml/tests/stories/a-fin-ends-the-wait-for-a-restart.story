# The receiver's rail breaks under the memory that it exposed, and it asks for a restart; but the sender has written all of it.
#
# A write that succeeded was complete before the memory was withdrawn. Its FIN was on its way over the rail that broke, comes
# over the other one, and ends the receive. ERROR names a send that has ended.

set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV
deliver rail 0 1->0 PUT
deliver rail 0 0->1 WRITE
expect wire rail 0 0->1 FIN
expect sent m ok

break rail 0 at 1
hold rail 1 1->0 ERROR restart 0 as late
deliver rail 1 1->0 BROKEN path 0
deliver rail 1 0->1 FIN restart 0
expect received m whole
release late
expect 0 counter stale_request 1
settle
expect 0 counter restarts 0
expect nothing left
