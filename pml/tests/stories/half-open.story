# Half open: one direction of a rail is dead, and only the side that speaks into it can notice.
#
# What rank 0 says over rail 0 is lost on the way; what rank 1 says arrives. So rank 0 finds the rail broken and rank 1 finds
# nothing: it would go on speaking into an end that is closed, and wait for ever. Rank 0 tells it over the rail that works,
# and rank 1 gives its own end up. What it had said in vain comes over rail 1.

0 send 1 tag 1 length 8 as there
1 send 0 tag 1 length 8 as back
1 receive 0 tag 1 length 8 as there
0 receive 1 tag 1 length 8 as back
drop rail 0 0->1 MATCH
deliver rail 0 1->0 MATCH
expect received back whole
expect sent back ok

break rail 0 at 0
deliver rail 1 0->1 MATCH
expect received there whole
expect sent there ok

1 send 0 tag 2 length 8 as in-vain
0 receive 1 tag 2 length 8 as in-vain
expect wire rail 0 1->0 MATCH
expect 1 rail 0 to 0 up
wait 3000 ms
expect received in-vain waits

deliver rail 1 0->1 BROKEN path 0
expect 1 rail 0 to 0 down
deliver rail 1 1->0 MATCH
expect received in-vain whole
expect sent in-vain ok
settle
expect nothing left
