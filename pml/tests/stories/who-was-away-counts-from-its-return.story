# A rank that computes looks at nothing. Its rails lose their links, one after the other, and one comes back while it is
# away, for longer than it would have waited (5 s).
#
# Its own absence is not the peer's: when it looks again, the way is called, and what was sent arrives.

0 send 1 tag 7 length 8 as m
1 receive 0 tag 7 length 8 as m
break rail 0 at 0 because link
break rail 1 at 0 because link
away 6000 ms
mend rail 0 0->1
settle
expect sent m ok
expect received m whole
expect nothing left
