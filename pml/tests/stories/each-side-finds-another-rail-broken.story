# Rank 0 finds rail 0 broken, rank 1 finds rail 1 broken, at the same time.
#
# Each would tell the other over the next best rail, which is the one that the other has just closed: two words that nobody
# hears, and then everything goes the same way. So the news go over every rail that is left, and rail 2 brings them.

rails 3

1 send 0 tag 1 length 8 as back
0 receive 1 tag 1 length 8 as back
0 send 1 tag 1 length 8 as there
1 receive 0 tag 1 length 8 as there
break rail 0 at 0
break rail 1 at 1
expect received there waits
expect received back waits

deliver rail 2 0->1 BROKEN path 0
deliver rail 2 1->0 BROKEN path 1
expect 1 rail 0 to 0 down
expect 0 rail 1 to 1 down
settle
expect received there whole
expect received back whole
expect sent there ok
expect sent back ok
expect nothing left
