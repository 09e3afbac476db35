# One end forgets the other in the middle of a message: both requests end, and nothing of the rest is sent.

set protocol fragments

0 send 1 tag 7 length 90000 as m
0 send 1 tag 8 length 100 as short
1 receive 0 tag 7 length 90000 as m
1 receive 0 tag 9 length 100 as other
deliver rail 0 0->1 RNDV
deliver rail 0 1->0 ACK
deliver rail 0 0->1 FRAG
0 forget 1
expect sent m lost
expect sent short ok
0 forget 1
expect received m waits
expect 0 counter peers_lost 0

break rail 0 at 1 because closed
break rail 1 at 1 because closed
expect received m lost
expect received other lost
expect 1 counter peers_lost 1
settle
expect nothing left
