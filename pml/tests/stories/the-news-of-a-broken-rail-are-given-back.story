# The news that one rail is broken travel over the next one, which breaks, too, before they are there.
#
# They are about the first rail, not about the one that gives them back, and the peer has to hear them still: rail 0 is half
# open, and rank 1 speaks into it.

rails 3

break rail 0 at 0
expect wire rail 1 0->1 BROKEN path 0
drop rail 2 0->1 BROKEN path 0
break rail 1 at 0
break rail 1 at 1
deliver rail 2 0->1 BROKEN path 0
expect 1 rail 0 to 0 down

1 send 0 tag 1 length 8 as m
0 receive 1 tag 1 length 8 as m
deliver rail 2 1->0 MATCH
expect received m whole
expect sent m ok
settle
expect nothing left
