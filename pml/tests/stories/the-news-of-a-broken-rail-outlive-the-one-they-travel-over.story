# The news that a rail is broken are given back by the one they travelled over, when the first has come back already.
#
# They are not told once more: the peer knows by now, as it has begun again, too.

rails 3

break rail 0 at 0
expect wire rail 1 0->1 BROKEN path 0 number 0
drop rail 2 0->1 BROKEN path 0
break rail 0 at 1
mend rail 0 0->1
expect 0 rail 0 to 1 returning
expect 1 rail 0 to 0 returning

break rail 1 at 0
expect no wire rail 2 0->1 BROKEN path 0
expect wire rail 2 0->1 BROKEN path 1 number 0
deliver rail 2 0->1 BROKEN path 1
expect 1 rail 1 to 0 down
settle for 1000 ms
expect 1 rail 0 to 0 up
expect 1 counter late_word 0
settle
expect nothing left
