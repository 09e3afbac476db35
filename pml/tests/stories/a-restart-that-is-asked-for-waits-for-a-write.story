# The receiver finds the rail broken over which the sender writes into its memory; the sender's end of it stands.
#
# ERROR stops the sender, but its write is under way still, and has to end before NOTIFY says that nothing is.

set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV can-put 1
deliver rail 0 1->0 PUT restart 0
expect wire rail 0 0->1 WRITE
break rail 0 at 1
deliver rail 1 1->0 ERROR restart 0
wait 1000 ms
expect no wire rail 0 0->1 NOTIFY
expect no wire rail 1 0->1 NOTIFY

deliver rail 0 0->1 WRITE
deliver rail 1 1->0 BROKEN path 0
deliver rail 1 0->1 NOTIFY restart 1
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect nothing left
