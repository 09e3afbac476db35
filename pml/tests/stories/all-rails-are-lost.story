# Every rail to one peer is lost, and nobody waits for them to come back (patience 0).
#
# Each request that needs this peer ends, once, with the error that says so: a send that is announced, a receive that nothing
# has matched, a receive in the middle of a read. The read first has to end, as it may write into the memory that the user
# gets back. A third rank is not concerned: what goes on with it goes on.

ranks 3
set protocol get
set patience 0 ms

1 receive 0 tag 7 length 90000 as m
0 send 1 tag 7 length 90000 as m
0 receive 1 tag 8 length 8 as answer
2 receive 0 tag 7 length 90000 as other
0 send 2 tag 7 length 90000 as other
deliver rail 0 0->1 RGET
deliver rail 0 0->2 RGET
expect wire rail 0 1->0 READ

break rail 0 at 0 to 1
expect sent m waits
break rail 1 at 0 to 1
expect sent m lost
expect received answer lost
expect 0 counter peers_lost 1

break rail 1 at 1 to 0
break rail 0 at 1 to 0 keeping operations
expect received m waits
fail rail 0 1->0 READ as indeterminate
expect received m lost
expect 1 counter peers_lost 1

settle
expect received other whole
expect sent other ok
2 send 0 tag 9 length 8 as more
0 receive any tag 9 length 8 as more
settle
expect received more whole
expect sent more ok
expect nothing left
