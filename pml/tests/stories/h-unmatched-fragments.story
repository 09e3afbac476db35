# Race (h): the announcement errs while no receive has matched it.
#
# Nothing but the announcement can have been lost, so it is sent again; the one that is kept makes it a duplicate. The
# receive comes later, and finds the message once.

set protocol fragments

0 send 1 tag 7 length 20000 as m
arrive rail 0 0->1 RNDV restart 0
break rail 0 at 0
deliver rail 1 0->1 RNDV restart 0
expect 1 counter duplicate 1
expect 1 counter unexpected 1

1 receive 0 tag 7 length 20000 as m
settle
expect received m whole
expect sent m ok
expect 0 counter restarts 0
expect nothing left
