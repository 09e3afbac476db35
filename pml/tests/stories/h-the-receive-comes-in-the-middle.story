# Race (h), once more: the receive is posted in the middle of the handshake, after the receiver said that it is ready.
#
# The announcement that it finds is out of date, which its odd number says: nothing is read, nothing is asked for. The new
# announcement names no receive, as its sender knows of none, and finds it all the same.

set protocol get

0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
break rail 0 at 0
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 0->1 NOTIFY restart 1 receiver 0
1 receive 0 tag 7 length 90000 as m
expect no wire rail 0 1->0 READ
expect no wire rail 1 1->0 ERROR
deliver rail 1 1->0 RESTART-ACK restart 1 receiver 0
deliver rail 1 0->1 RGET restart 2 receiver 0
deliver rail 1 1->0 READ length 90000
settle
expect received m whole
expect sent m ok
expect 1 counter gets 1
expect nothing left
