# The news that a rail is broken, its end here, and its return are there at once, before anybody here looks at any of them.
#
# As the other rail breaks at the same moment, the one that came back is used without a proof, and nothing else is left:
# the news are about the connection before, and do not break this one.

break rail 1 at 0
expect wire rail 0 0->1 BROKEN path 1 number 0

unseen deliver rail 0 0->1 BROKEN path 1
unseen poll at 1
unseen break rail 0 at 1
unseen break rail 1 at 1
mend rail 1 0->1
expect 1 rail 0 to 0 down
expect 1 rail 1 to 0 up

0 send 1 tag 1 length 8 as m
1 receive 0 tag 1 length 8 as m
settle
expect received m whole
expect sent m ok
settle
expect nothing left
