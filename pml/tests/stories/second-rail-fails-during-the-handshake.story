# The second rail fails during the handshake, and at one end only.
#
# Rank 0 writes into the memory of rank 1 when rail 0 breaks. NOTIFY goes over rail 1, which rank 1 has just found broken: it
# says so over rail 2, and only then does rank 0 know that NOTIFY went nowhere. It goes again, over rail 2.

rails 3
set protocol put

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV can-put 1
deliver rail 0 1->0 PUT offset 0
expect wire rail 0 0->1 WRITE length 90000

break rail 0 at 0
break rail 1 at 1
expect no wire rail 1 0->1 NOTIFY
expect 0 rail 1 to 1 up
deliver rail 2 1->0 BROKEN path 1
expect 0 rail 1 to 1 down

deliver all rail 2 0->1 BROKEN
deliver rail 2 0->1 NOTIFY restart 1
deliver rail 2 1->0 RESTART-ACK restart 1
deliver rail 2 0->1 RNDV restart 2 can-put 1
deliver rail 2 1->0 PUT restart 2
deliver rail 2 0->1 WRITE length 90000
deliver rail 2 0->1 FIN restart 2
settle

expect received m whole
expect sent m ok
expect 0 counter restarts 1
expect nothing left
