# Every rail is lost while the sender writes into the receiver's memory.
#
# The receiver's end comes at once: its key is withdrawn, so that nothing can write there any more. The sender's write has to
# end first. Each of them is told once.

set protocol put
set patience 0 ms

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV
deliver rail 0 1->0 PUT
hold rail 0 0->1 WRITE as late

break rail 1 at 1
break rail 0 at 1
expect received m lost
reuse m
break rail 1 at 0
break rail 0 at 0 keeping operations
expect sent m waits
fail rail 0 0->1 late as indeterminate
expect sent m lost

release late
expect m untouched
expect 0 counter peers_lost 1
expect 1 counter peers_lost 1
expect nothing left
