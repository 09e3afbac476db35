# Race (c): FIN errs at its sender, but it had arrived.
#
# The receiver of a read says FIN, and its rail gives the FIN back, so it says it again. The send that it is about has
# ended meanwhile, and another one stands in its place: same slot, same receiver, waiting for a FIN of its own. Requests are
# named with their generation, and FIN carries the identity of its message: the second one is dropped.

set protocol get

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET length 90000
deliver rail 0 1->0 READ length 90000
arrive rail 0 1->0 FIN
expect sent m ok
expect received m whole

0 send 1 tag 7 length 80000 as n
deliver rail 0 0->1 RGET length 80000
break rail 0 at 1
deliver rail 1 1->0 FIN restart 0
expect 0 counter stale_request 1
expect sent n waits

1 receive 0 tag 7 length 80000 as n
settle
expect received n whole
expect sent n ok
expect nothing left
