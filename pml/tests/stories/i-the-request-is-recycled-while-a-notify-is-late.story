# Race (i): a NOTIFY comes so late that the requests which it names serve another message.
#
# The receiver had read the message when the rail broke. Its FIN goes again, over rail 1, and overtakes the sender's NOTIFY
# there. Both are done with the message; the next one takes their slots. BFO compares sequence numbers then, and lowers the one
# of a request that has ended by a hundred. Here requests are named with their generation, so the late word names nothing that
# lives. The receiver takes the message that it is about for complete, and says so; its sender has forgotten it, too. The
# message that stands in both slots now is not touched.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET
deliver rail 0 1->0 READ
break rail 0 at 0
hold rail 1 0->1 NOTIFY restart 1 as late
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 1->0 FIN restart 0
expect received m whole
expect sent m ok

1 receive 0 tag 7 length 90000 as n
0 send 1 tag 7 length 90000 as n
deliver rail 1 0->1 RGET
expect wire rail 1 1->0 READ
release late
expect no wire rail 1 1->0 RESTART-ACK
deliver rail 1 1->0 RESTART-NACK restart 1
expect 0 counter stale_request 1
expect sent n waits
expect received n waits

deliver rail 1 1->0 READ
deliver rail 1 1->0 FIN restart 0
settle
expect received n whole
expect sent n ok
expect 1 counter gets 2
expect nothing left
