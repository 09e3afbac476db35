# Race (h) for an announcement that names memory, was taken, and is not matched: the rail breaks, and the memory with it.
#
# NOTIFY names no receive, as there is none. The receiver looks for the message itself, and exchanges the announcement that
# it keeps. A receive that comes later reads the new memory, and never hears of the old.

set protocol get

0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RGET restart 0
break rail 0 at 0
deliver rail 1 0->1 BROKEN path 0
deliver rail 1 0->1 NOTIFY restart 1 receiver 0
deliver rail 1 1->0 RESTART-ACK restart 1 receiver 0
deliver rail 1 0->1 RGET restart 2 receiver 0
expect 1 counter unexpected 1

1 receive 0 tag 7 length 90000 as m
expect no wire rail 0 1->0 READ
deliver rail 1 1->0 READ length 90000
settle
expect received m whole
expect sent m ok
expect 1 counter fallbacks 0
expect nothing left
