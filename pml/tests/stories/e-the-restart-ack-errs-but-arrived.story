# Race (e): the receiver's RESTART-ACK errs, but it had arrived.
#
# It is sent again over rail 2. The first copy comes when the sender has gone on long ago. The second one comes in the middle
# of the next cycle, when the sender waits for a RESTART-ACK, too: but for one with another number. Neither moves anything.

rails 3
set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
break rail 0 at 0
deliver rail 1 0->1 NOTIFY restart 1
deliver rail 1 0->1 BROKEN path 0
arrive rail 1 1->0 RESTART-ACK restart 1
deliver rail 1 0->1 RGET restart 2
expect wire rail 1 1->0 READ length 90000

break rail 1 at 1
duplicate rail 2 1->0 RESTART-ACK restart 1
expect 0 counter late_word 1
hold rail 2 1->0 RESTART-ACK restart 1 as late

deliver rail 2 1->0 BROKEN path 1
expect wire rail 2 0->1 NOTIFY restart 3
release late
expect 0 counter late_word 2
expect no wire rail 2 0->1 RGET
expect no wire rail 2 0->1 RNDV

deliver rail 2 0->1 NOTIFY restart 3
deliver rail 2 1->0 RESTART-ACK restart 3
deliver rail 2 0->1 RGET restart 4
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 2
expect nothing left
