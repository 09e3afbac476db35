# The same at the sender: its write into the receiver's memory has not ended when the rail breaks.
#
# NOTIFY says that nothing of the old attempt is under way any more. So it has to wait for the write.

set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV can-put 1
deliver rail 0 1->0 PUT restart 0
break rail 0 at 0 keeping operations
expect no wire rail 1 0->1 NOTIFY
wait 1000 ms
expect no wire rail 1 0->1 NOTIFY
expect sent m waits

fail rail 0 0->1 WRITE as indeterminate
deliver rail 1 0->1 NOTIFY restart 1
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect nothing left
