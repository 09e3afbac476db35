# The receiver's rail breaks under the memory that it exposed, and it asks for a restart. The sender's write has found the
# memory withdrawn meanwhile, and the sender has turned to fragments, by itself. The first of them ends the wait.
#
# ERROR comes when everything has left. It names a send that has ended: nothing is sent twice.

set protocol put

1 receive 0 tag 7 length 20000 as m
0 send 1 tag 7 length 20000 as m
deliver rail 0 0->1 RNDV can-put 1
deliver rail 0 1->0 PUT
break rail 0 at 1
hold rail 1 1->0 ERROR restart 0 as late
deliver rail 0 0->1 WRITE
expect 0 counter fallbacks 1
expect wire rail 0 0->1 FRAG offset 0

deliver rail 1 1->0 BROKEN path 0
deliver rail 1 0->1 FRAG offset 0
deliver rail 1 0->1 FRAG offset 8168
deliver rail 1 0->1 FRAG offset 16336
expect received m whole
expect sent m ok
release late
expect 0 counter stale_request 1
settle
expect 0 counter restarts 0
expect nothing left
