# A rail breaks that cannot give back what it had accepted. Another one stands, but nobody can say what is missing.
#
# The peer is lost, as a hole in the order would be worse: a receive whose memory the sender writes into, a send in the
# middle of that write, a receive that nothing has matched. Each ends once, and no key is left.

rail 0 cannot reclaim
set protocol put

1 receive 0 tag 7 length 90000 as m
1 receive 0 tag 8 length 8 as more
0 send 1 tag 7 length 90000 as m
deliver rail 0 0->1 RNDV
deliver rail 0 1->0 PUT
break rail 0 at 1
expect received m lost
expect received more lost
expect no wire rail 1 1->0 ERROR
break rail 0 at 0
expect sent m lost
expect 0 counter peers_lost 1
expect 1 counter peers_lost 1
settle
expect nothing left
